"""When a node starts a head in the place of one that is gone: by its silence here, and by that of the storage."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from tests.support.fakes.clock import Clock

from ftlaunch.nodes.agent.head.starter import READ_SIGN, START, SUCCEED, TAKE_OVER
from ftlaunch.nodes.agent.head_search import HeadSearch
from ftlaunch.nodes.agent.takeover import QUIET_SECONDS
from ftlaunch.nodes.channel.claims import Sign

STALE = 1.5
SIGN = Sign(term=3, address="10.0.0.1", port=29400, machine="there", pid=7, started=70, count=9)


class Storage:
    """The starter of a node, and the sign that it finds in the run dir."""

    def __init__(self, machine: str = "here", *, in_store: bool = False) -> None:
        self.clock = Clock()
        self.search = HeadSearch(self._order, self.clock, machine, STALE, in_store=in_store)
        self.sign: Sign | None = SIGN
        self.answers = True
        self.orders: list[bytes] = []

    def _order(self, order: bytes) -> None:
        self.orders.append(order)

    def live(self, seconds: float, place: int = 0, *, counts: bool = False) -> bool:
        """Let time pass; whether a head was to be started instead of the one of the sign."""
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.now += 0.05
            if counts and self.sign is not None:
                self.sign = replace(self.sign, count=self.sign.count + 1)
            self.search.poll(self.clock.now, place)
            if self.orders and self.orders[-1] == TAKE_OVER:
                return True
            if self.orders and self.answers:
                self.orders.clear()
                self.search.on_answer({"sign": {} if self.sign is None else asdict(self.sign)})
        return False


@pytest.fixture
def storage() -> Storage:
    return Storage()


def test_the_sign_is_not_looked_at_while_the_head_is_heard(storage: Storage) -> None:
    storage.answers = False
    for _ in range(20):
        storage.live(QUIET_SECONDS / 2)
        storage.search.record_message(storage.clock.now)
    assert storage.orders == []


def test_a_silent_head_without_a_sign_of_life_is_replaced_before_the_lease_is_over(storage: Storage) -> None:
    assert not storage.live(STALE)
    assert storage.live(1.4)


def test_a_head_that_the_storage_sees_is_left_alone(storage: Storage) -> None:
    assert not storage.live(60.0, counts=True)
    assert storage.search.alive


def test_a_head_that_is_heard_is_left_alone_whatever_the_storage_says(storage: Storage) -> None:
    for _ in range(20):
        assert not storage.live(1.0)
        storage.search.record_message(storage.clock.now)


def test_storage_that_does_not_answer_replaces_nobody(storage: Storage) -> None:
    storage.answers = False
    assert not storage.live(60.0)
    assert storage.orders == [READ_SIGN]


@pytest.mark.parametrize("sign", [None, replace(SIGN, over=0)], ids=["none", "over"])
def test_where_there_was_no_head_or_the_job_is_over_none_is_started(storage: Storage, sign: Sign | None) -> None:
    storage.sign = sign
    assert not storage.live(60.0)


def test_a_node_that_stands_by_starts_a_head_where_no_other_one_does(storage: Storage) -> None:
    assert not storage.live(9.0, place=-1)
    assert storage.live(3.0, place=-1)


def test_candidates_come_one_after_another_and_the_heads_machine_first() -> None:
    waited = []
    for machine, place in (("there", 2), ("here", 0), ("here", 1), ("here", 7)):
        storage = Storage(machine)
        begun = storage.clock.now
        assert storage.live(10.0, place)
        waited.append(storage.clock.now - begun)
    assert waited == sorted(waited)
    assert waited[1] > waited[0] + 0.1
    assert waited[2] > waited[1] + 0.1


def test_after_a_try_the_wait_begins_anew(storage: Storage) -> None:
    """Another node was first, and may not have shown its sign yet; or nothing came of it."""
    assert storage.live(10.0)
    storage.orders.clear()
    storage.search.on_answer({"head": 0})
    assert not storage.live(STALE)
    assert storage.live(1.0)


def test_the_sign_of_an_older_head_that_comes_late_counts_for_nothing(storage: Storage) -> None:
    storage.live(1.0)
    storage.sign = replace(SIGN, term=2)
    storage.live(1.0)
    assert storage.search.sign == SIGN


def test_a_head_is_started_at_home_once_at_a_time(storage: Storage) -> None:
    storage.search.start_head()
    storage.search.start_head()
    assert storage.orders == [START]
    storage.search.on_answer({"head": 0})
    storage.search.start_head()
    assert storage.orders == [START, START]


def test_a_node_that_has_taken_part_begins_no_job_anew(storage: Storage) -> None:
    """Taken out: a machine that was frozen while its job ended elsewhere had a head started for a job that was over."""
    storage.search.record_message(storage.clock.now)
    storage.search.start_head()
    assert storage.orders == [SUCCEED]


def test_a_node_that_nobody_reaches_is_the_last_to_start_a_head(storage: Storage) -> None:
    """Taken out: a machine whose link was down took the place of a head that died later, and nobody could go there."""
    storage.search.record_message(storage.clock.now)
    assert not storage.live(10.0, counts=True), "the head lives on"
    assert not storage.live(STALE + 5.0), "others come first"
    assert storage.live(5.0), "unless nobody else is left"


@pytest.mark.parametrize("sign", [None, replace(SIGN, over=75)], ids=["none", "over"])
def test_where_nodes_meet_in_store_any_of_them_begins_a_job_that_has_no_head(sign: Sign | None) -> None:
    """Taken out: of nodes that are started while the head of the job's last life ends none starts another one."""
    storage = Storage(in_store=True)
    search, orders, storage.sign = storage.search, storage.orders, sign
    storage.answers = False
    storage.live(0.1)
    assert orders == [READ_SIGN], "at once: there is nobody to be heard"
    search.on_answer({"sign": {} if sign is None else asdict(sign)})
    storage.live(0.1)
    assert orders == [READ_SIGN, START]
    search.on_answer({"head": 0})
    storage.live(0.1)
    assert orders == [READ_SIGN, START, READ_SIGN], "another node was first, and will show its sign"
    search.on_answer({"sign": asdict(SIGN)})
    storage.live(0.1)
    assert orders[3:] == [READ_SIGN]
    search.on_answer({"sign": asdict(replace(SIGN, count=10))})
    assert search.alive


def test_a_node_that_had_a_head_begins_no_job_anew_in_store_either() -> None:
    storage = Storage(in_store=True)
    storage.sign = None
    storage.search.record_message(storage.clock.now)
    storage.answers = False
    storage.live(60.0)
    assert storage.orders == [READ_SIGN]
    storage.search.on_answer({"sign": {}})
    storage.live(60.0)
    assert START not in storage.orders


def test_a_head_that_answers_seldom_is_not_looked_for_between_two_answers(storage: Storage) -> None:
    """With thousands of nodes it answers once a second. Without this each of them would read the run dir for ever."""
    seldom = HeadSearch(storage.orders.append, storage.clock, "here", STALE, quiet_seconds=1.5)
    for _ in range(5):
        for _ in range(10):
            storage.clock.now += 0.1
            seldom.poll(storage.clock.now, 0)
        seldom.record_message(storage.clock.now)
    assert storage.orders == []
    storage.clock.now += 1.6
    seldom.poll(storage.clock.now, 0)
    assert storage.orders == [READ_SIGN]

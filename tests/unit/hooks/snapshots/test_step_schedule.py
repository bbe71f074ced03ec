"""Rank 0 says what happens at each boundary; the others do it, whatever they see themselves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.snapshots import make_pages
from tests.support.waiting import wait_for

from ftlaunch_contract.pages.page import NONE, Page, open_pages
from ftlaunch_contract.pages.words import SCHEDULE
from ftlaunch_contract.protocol import Why
from ftlaunch_hooks.snapshots.interval import AdaptiveInterval
from ftlaunch_hooks.snapshots.memory_budget import MemoryBudget
from ftlaunch_hooks.snapshots.step_schedule import BoundaryOrder, StepSchedule, pack, unpack


class Member:
    """A rank as far as the agenda goes; its orders stand in its own page."""

    def __init__(self, directory: Path, rank: int, world_size: int, interval: int = 1) -> None:
        self.pages = open_pages(directory, world_size)
        self.page = self.pages[rank]
        self.page.begin(0, 1, 1)
        self.page.beat(0, 0)
        self.pace, self.room = AdaptiveInterval(interval, auto=False), MemoryBudget(rank, self.pages, directory)
        self.agenda = StepSchedule(rank, self.pages, self.page, self.pace, self.room)


@pytest.fixture
def pair(memory: Path) -> Iterator[list[Member]]:
    make_pages(memory, 2)
    members = [Member(memory, rank, 2) for rank in range(2)]
    yield members
    for page in [page for member in members for page in member.pages]:
        page.close()


@pytest.mark.parametrize(
    "entry",
    [
        BoundaryOrder(), BoundaryOrder(snapshot=True), BoundaryOrder(True, Why.INTERVAL),
        BoundaryOrder(False, Why.END, 0, True), BoundaryOrder(True, None, 41),
        BoundaryOrder(agree=True),
    ],
)  # fmt: skip
def test_an_entry_fits_into_a_word(entry: BoundaryOrder) -> None:
    for step in (42, 2**31 - 1):
        there = unpack(pack(step, entry))
        kept = entry if step - entry.keep < 1 << 24 else BoundaryOrder(entry.snapshot, entry.hold, NONE, entry.agree)
        assert there == (step, kept)
        assert pack(step, entry) < 2**63


def test_the_interval_is_rank_0s(pair: list[Member]) -> None:
    leader, other = pair
    taken = {}
    for step in range(1, 20):
        leader.pace.interval = 3 if step < 8 else 5
        leader.agenda.write(step)
        assert leader.agenda.read(step) == other.agenda.read(step)
        taken[step] = other.agenda.read(step).snapshot
    assert [step for step, take in taken.items() if take] == [3, 6, 10, 15]
    assert leader.page.memory.interval == 5


def test_orders_count_as_rank_0_sees_them(pair: list[Member]) -> None:
    """The supervisor writes page after page: another rank may have read its own a moment too early."""
    leader, other = pair
    leader.page.persist_at = 4
    leader.page.stop_at = 7
    held = {}
    for step in range(1, 9):
        leader.agenda.write(step)
        held[step] = other.agenda.read(step).hold
    assert [(s, w) for s, w in held.items() if w is not None] == [(4, Why.INTERVAL), (7, Why.STOP), (8, Why.STOP)]


def test_what_was_announced_too_late_is_held_at_the_next_step_and_once(pair: list[Member]) -> None:
    leader, other = pair
    for step in range(1, 10):
        if step == 6:
            leader.page.persist_at = 3
        leader.agenda.write(step)
        assert other.agenda.read(step).hold == (Why.INTERVAL if step == 6 else None)


def test_what_the_saver_may_be_reading_is_kept_until_rank_0_sees_it_saved(pair: list[Member]) -> None:
    leader, other = pair
    kept = {}
    for step in range(1, 9):
        if step == 1:
            leader.page.persist_at = 2
        if step == 6:
            leader.page.saved = 2
            leader.page.reading = NONE
        leader.agenda.write(step)
        kept[step] = other.agenda.read(step).keep
    assert kept == {1: NONE, 2: NONE, 3: 2, 4: 2, 5: 2, 6: NONE, 7: NONE, 8: NONE}


def test_a_rank_waits_for_the_word_of_rank_0(pair: list[Member]) -> None:
    leader, other = pair
    found: list[BoundaryOrder] = []
    reader = threading.Thread(target=lambda: found.append(other.agenda.read(1)))
    reader.start()
    reader.join(0.05)
    assert reader.is_alive()
    leader.agenda.write(1)
    reader.join(60)
    assert found == [BoundaryOrder(snapshot=True)]


def test_rank_0_does_not_overwrite_what_a_slow_rank_has_not_read(pair: list[Member]) -> None:
    leader, other = pair
    for step in range(1, SCHEDULE.count + 1):
        leader.agenda.write(step)
        leader.page.beat(step, 0)
    writer = threading.Thread(target=leader.agenda.write, args=(SCHEDULE.count + 1,))
    writer.start()
    writer.join(0.05)
    assert writer.is_alive()
    assert other.agenda.read(1).snapshot
    other.page.beat(1, 0)
    writer.join(60)
    assert not writer.is_alive()


@pytest.mark.parametrize("waiting", ["reader", "writer"])
def test_waiting_ends_when_told_to_leave(pair: list[Member], waiting: str) -> None:
    rank, step = (1, 1) if waiting == "reader" else (0, SCHEDULE.count + 1)
    call = pair[rank].agenda.read if waiting == "reader" else pair[rank].agenda.write
    thread = threading.Thread(target=call, args=(step,))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    pair[rank].page.leave = True
    thread.join(60)
    assert not thread.is_alive()


def test_a_rank_by_itself_heeds_the_newest_orders(memory: Path) -> None:
    make_pages(memory, 1)
    member = Member(memory, 0, 1)
    member.agenda.write(1)
    member.page.stop_at = 1
    assert member.agenda.read(1).hold == Why.STOP
    for page in member.pages:
        page.close()


def test_the_entries_of_an_earlier_attempt_are_not_read(pair: list[Member], memory: Path) -> None:
    pair[0].agenda.write(5)
    again: Page = pair[0].page
    again.begin(1, 2, 2)
    reader = threading.Thread(target=pair[1].agenda.read, args=(5,))
    reader.start()
    reader.join(0.05)
    assert reader.is_alive()
    pair[1].page.leave = True
    reader.join(60)


def holds(members: list[Member], steps: range) -> list[int]:
    leader, other = members
    held = []
    for step in steps:
        leader.agenda.write(step)
        assert leader.agenda.read(step) == other.agenda.read(step)
        held += [step] if other.agenda.read(step).hold is Why.INTERVAL else []
    return held


@pytest.mark.parametrize(("ahead", "expected"), [(0, [5, 10, 15]), (12, [3, 8, 13, 18])])
def test_multiples_that_the_script_asks_for_are_held_and_what_an_interval_has_announced_is_not(
    ahead: int, expected: list[int], pair: list[Member]
) -> None:
    for member in pair:
        member.page.persist_at = 4
        member.agenda.save_every(5, ahead)
    assert holds(pair, range(1, 20)) == expected


def test_what_somebody_asks_for_is_held_between_the_multiples(pair: list[Member]) -> None:
    for member in pair:
        member.agenda.save_every(5)
        member.page.persist_at = 7
    assert holds(pair, range(1, 12)) == [5, 7, 10]


def test_a_rank_that_is_idle_sees_the_next_multiple(memory: Path) -> None:
    """Taken out: without the multiple in StepSchedule._next() no boundary before the next snapshot is looked at."""
    make_pages(memory, 1)
    member = Member(memory, 0, 1, interval=1000)
    member.agenda.save_every(5)
    member.agenda.write(1)
    crossed = []
    for step in range(1, 13):
        if not member.agenda.idle(step, 0):
            order = member.agenda.read(step)
            crossed += [step] if order.hold is Why.INTERVAL else []
            member.agenda.invalidate_order()
    assert crossed == [5, 10]
    for page in member.pages:
        page.close()


def test_snapshots_are_taken_as_the_script_asks(pair: list[Member]) -> None:
    for member in pair:
        member.pace = AdaptiveInterval(1, auto=True)
        member.agenda = StepSchedule(
            member.pages.index(member.page), member.pages, member.page, member.pace, member.room
        )
        member.agenda.keep_interval(4)
        member.pace.note(1.0, 0.9, 0.0, True)  # `auto` would have fewer by now
    taken = []
    for step in range(1, 13):
        pair[0].agenda.write(step)
        taken += [step] if pair[1].agenda.read(step).snapshot else []
    assert taken == [4, 8, 12]


@pytest.mark.parametrize("ends", ["saved", "stop", "leave"])
def test_the_next_multiple_waits_for_the_saver_and_the_rank_gives_signs_of_life(ends: str, pair: list[Member]) -> None:
    """Taken out: without `stop_at` in await_saver() a job whose storage does not answer reaches no stop."""
    member = pair[0]
    member.agenda.save_every(5)
    assert member.agenda.await_saver(5) < 1e9
    member.page.beat(9, 0)
    waits = threading.Thread(target=member.agenda.await_saver, args=(10,))
    waits.start()
    wait_for(lambda: member.page.beat_ns > 0, "a sign of life")
    assert waits.is_alive()
    match ends:
        case "saved":
            member.page.saved = 5
        case "stop":
            member.page.stop_at = 12
        case "leave":
            member.page.leave = True
    waits.join(60)
    assert not waits.is_alive()

"""A node's saver writes one part at a time, and each answer says which request it is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ftlaunch.nodes.agent.node.node_helpers import NodeHelpers
from ftlaunch.nodes.agent.node.node_load import NodeLoad
from ftlaunch.nodes.agent.node.node_store import NodeStore
from ftlaunch.nodes.agent.node.node_voter import NodeVoter
from ftlaunch.nodes.agent.node.own_files import OwnFiles


class FakeSaverLink:
    """A saver that answers when the test says so."""

    def __init__(self, fd: int) -> None:
        self.fd, self.pending, self.hurried = fd, None, 0
        self.asked: list[dict[str, Any]] = []
        self.looked: list[float] = []
        self.said: list[dict[str, Any]] | None = []

    def ask(self, request: dict[str, Any]) -> None:
        """Take a request."""
        assert self.pending is None
        self.pending: dict[str, Any] | None = request
        self.asked.append(request)

    def hurry(self) -> None:
        """Count it."""
        self.hurried += 1

    def kill_if_stopped(self, now: float) -> None:
        """Note it."""
        self.looked.append(now)

    def answers(self) -> list[dict[str, Any]] | None:
        """What it has said."""
        if self.said:
            self.pending = None
        return self.said

    def close(self, timeout: float) -> int:
        """It is gone."""
        return -9


class FakeCollector:
    """What collects an autopsy."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.killed = False

    def poll(self) -> int | None:
        """None: it works."""
        return self.status

    def kill(self) -> None:
        """Note it."""
        self.killed = True


class Node:
    """The helpers of a node, and what they tell the head."""

    def __init__(self) -> None:
        self.savers: list[FakeSaverLink] = []
        self.collectors: list[FakeCollector] = []
        self.can_collect = self.can_start = True
        self.listening: dict[int, Callable[[], None]] = {}
        self.told: list[tuple[str, dict[str, Any]]] = []
        loop: Any = self
        start: Any = self._start
        collect: Any = self._collect
        unused: Any = None
        own_files = OwnFiles(unused, unused, self._tell, unused)  # the run dir is shared: nothing is sent
        store = NodeStore(unused, "unused", loop, unused, self._tell)  # the checkpoint dir is shared: it does nothing
        load = NodeLoad(unused, loop, unused, self._tell, unused)  # the job begins with no address: it does nothing
        voter = NodeVoter(loop, unused, {}, self._tell, unused)  # no head orders it: it does nothing
        self.helpers = NodeHelpers(
            loop=loop,
            start_saver=start,
            collect=collect,
            may_begin=lambda _: True,
            own_files=own_files,
            store=store,
            load=load,
            voter=voter,
            send=self._tell,
        )

    def register(self, fd: int, handler: Callable[[], None]) -> None:
        """Keep the handler of a descriptor for the test to call."""
        self.listening[fd] = handler

    def unregister(self, fd: int) -> None:
        """Forget the handler of a descriptor."""
        del self.listening[fd]

    def _start(self) -> FakeSaverLink:
        if not self.can_start:
            raise OSError(24, "Too many open files")
        self.savers.append(FakeSaverLink(len(self.savers)))
        return self.savers[-1]

    def _collect(self, request: Any) -> FakeCollector:
        if not self.can_collect:
            raise OSError(11, "Resource temporarily unavailable")
        self.collectors.append(FakeCollector())
        return self.collectors[-1]

    def _tell(self, do: str, **fields: Any) -> None:
        self.told.append((do, fields))

    def write(self, number: int) -> None:
        """The head asks for a part."""
        request = {"do": "write", "step": 10, "number": number, "slots": {"2": 1}}
        self.helpers.ask_saver(request, lambda slots: {rank: f"/slot_{slot}" for rank, slot in slots.items()})

    def says(self, *answers: dict[str, Any]) -> None:
        """The saver answers."""
        self.savers[-1].said = list(answers)
        self.listening[self.savers[-1].fd]()

    def dies(self) -> None:
        """The saver is gone."""
        self.savers[-1].said = None
        self.listening[self.savers[-1].fd]()


@pytest.fixture
def node() -> Node:
    return Node()


def test_parts_are_written_one_after_another_from_the_nodes_own_slots(node: Node) -> None:
    node.write(1)
    node.write(2)
    (asked,) = node.savers[0].asked
    assert asked["ranks"] == {"2": "/slot_1"}
    node.says({"did": "write", "step": 10, "bytes": 5})
    assert node.told == [("saver", {"answer": {"did": "write", "step": 10, "bytes": 5, "number": 1}})]
    assert [request["number"] for request in node.savers[0].asked] == [1, 2]


def test_the_part_of_a_saver_that_dies_is_written_by_another_one(node: Node) -> None:
    """Taken out: the last save of a job fails with a saver of one node, and the job with it."""
    node.write(1)
    node.write(2)
    node.dies()
    assert node.told == []
    assert [request["number"] for request in node.savers[1].asked] == [1]
    assert list(node.listening) == [1]
    node.says({"did": "write", "step": 10, "bytes": 5})
    assert [request["number"] for request in node.savers[1].asked] == [1, 2]


def test_a_part_over_which_savers_die_fails_and_the_next_is_written(node: Node) -> None:
    node.write(1)
    node.write(2)
    node.dies()
    node.dies()
    assert node.told == [("saver", {"answer": {"error": "its saver has died twice over it (-9)", "number": 1}})]
    assert [request["number"] for request in node.savers[2].asked] == [2]
    node.dies()
    assert [request["number"] for request in node.savers[3].asked] == [2], "it is another part"


def test_a_saver_that_cannot_be_started_is_tried_again(node: Node) -> None:
    """Taken out: one failed start of a process ends the agent."""
    node.write(1)
    node.can_start = False
    node.dies()
    node.write(2)
    node.helpers.poll(10.0)
    node.can_start = True
    node.helpers.poll(10.5)
    assert len(node.savers) == 1, "a try each second"
    node.helpers.poll(11.0)
    assert [request["number"] for request in node.savers[1].asked] == [1]
    node.says({"did": "write", "step": 10, "bytes": 5})
    assert [request["number"] for request in node.savers[1].asked] == [1, 2]


def test_what_a_saver_is_asked_for_fails_where_none_can_be_started_for_long(node: Node) -> None:
    node.write(1)
    node.can_start = False
    node.dies()
    node.write(2)
    for now in range(10, 16):
        node.helpers.poll(float(now))
    why = "no saver can be started: Too many open files"
    assert node.told == [("saver", {"answer": {"error": why, "number": number}}) for number in (1, 2)]
    node.helpers.close(1.0)


def test_an_idle_saver_that_dies_is_replaced_in_silence(node: Node) -> None:
    node.dies()
    assert node.told == []
    node.write(1)
    assert len(node.savers[1].asked) == 1


def test_only_a_saver_that_writes_is_hurried(node: Node) -> None:
    node.helpers.ask_saver({"do": "hurry"}, lambda _: {})
    node.write(1)
    node.helpers.ask_saver({"do": "hurry"}, lambda _: {})
    assert node.savers[0].hurried == 1


def test_the_saver_is_looked_at(node: Node) -> None:
    """Taken out: a node's saver that was stopped holds up every checkpoint, and the end of the job."""
    node.helpers.poll(5.0)
    assert node.savers[0].looked == [5.0]


def test_what_was_collected_is_told_once(node: Node) -> None:
    node.helpers.collect(4, {"directory": "autopsy", "ranks": []})
    node.helpers.poll(5.0)
    assert node.told == []
    node.collectors[0].status = 0
    node.helpers.poll(5.0)
    node.helpers.poll(5.0)
    assert node.told == [("collected", {"number": 4})]


def test_where_nothing_can_be_collected_nobody_waits_for_it(node: Node) -> None:
    node.can_collect = False
    node.helpers.collect(4, {"directory": "autopsy", "ranks": []})
    assert node.told == [("collected", {"number": 4})]


def test_what_nobody_waits_for_is_ended(node: Node) -> None:
    node.helpers.collect(4, {"directory": "autopsy", "ranks": []})
    node.helpers.collect_no_more(4)
    node.helpers.collect_no_more(5)
    assert node.collectors[0].killed
    node.helpers.poll(5.0)
    assert node.told == []

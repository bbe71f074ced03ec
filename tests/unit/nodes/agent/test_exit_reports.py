"""A restart ends all ranks of a node: the head is told in two messages, and of the first end at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from ftlaunch.nodes.agent.node.exit_reports import GATHER_SECONDS, ExitReports


class Timers:
    """A loop that has nothing but timers, and a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timers: dict[Hashable, tuple[float, Callable[[], None]]] = {}

    def call_at(self, when: float, name: Hashable, handler: Callable[[], None]) -> None:
        self._timers[name] = when, handler

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for name, (when, handler) in list(self._timers.items()):
            if when <= self.now:
                del self._timers[name]
                handler()


class Node:
    """What is told of the ends of its ranks."""

    def __init__(self) -> None:
        self.timers = Timers()
        self.told: list[tuple[int, dict[int, int]]] = []
        self.reports = ExitReports(self.timers, lambda: self.timers.now, self._send)  # type: ignore[arg-type]

    def _send(self, attempt: int, codes: Mapping[int, int]) -> None:
        self.told.append((attempt, dict(codes)))


def test_the_first_end_is_told_at_once() -> None:
    node = Node()
    node.reports.add(0, 3, -9, is_last=False)
    assert node.told == [(0, {3: -9})]


def test_ends_that_follow_are_told_together_with_the_last_one() -> None:
    node = Node()
    for rank in range(8):
        node.reports.add(0, rank, -15, is_last=rank == 7)
    assert node.told == [(0, {0: -15}), (0, dict.fromkeys(range(1, 8), -15))], "two messages, and none waits"


def test_what_follows_without_being_the_last_waits_for_a_moment_only() -> None:
    node = Node()
    node.reports.add(0, 3, -9, is_last=False)
    node.reports.add(0, 1, 1, is_last=False)
    assert len(node.told) == 1
    node.timers.pass_time(GATHER_SECONDS)
    assert node.told == [(0, {3: -9}), (0, {1: 1})]
    node.timers.pass_time(GATHER_SECONDS)
    node.reports.add(0, 2, 1, is_last=False)
    assert node.told[2:] == [(0, {2: 1})], "nothing has ended for a while: it is a first one again"


def test_ends_of_two_attempts_are_never_told_as_those_of_one() -> None:
    node = Node()
    node.reports.add(0, 0, -15, is_last=False)
    node.reports.add(0, 1, -15, is_last=False)
    node.reports.add(1, 0, 7, is_last=True)
    assert node.told == [(0, {0: -15}), (0, {1: -15}), (1, {0: 7})]

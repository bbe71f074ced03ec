"""Ranks of several nodes take the snapshots of the same steps: those of the interval that is announced to all nodes.

Tried: without the announced step among those that `idle` knows, a node that follows 100 steps goes on with them.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.support.snapshots import make_pages

from ftlaunch_contract.pages.page import Page, create_page, open_pages, page_path
from ftlaunch_hooks.snapshots.interval import AdaptiveInterval, AnnouncedInterval
from ftlaunch_hooks.snapshots.memory_budget import MemoryBudget
from ftlaunch_hooks.snapshots.step_schedule import StepSchedule


class CommonNode:
    """The ranks of a node as far as the schedule goes; each has orders of its own."""

    def __init__(self, directory: Path, first: int, count: int, interval: int = 1, *, auto: bool = True) -> None:
        directory.mkdir()
        for rank in range(first, first + count):
            create_page(page_path(directory, rank))
        self.pages = open_pages(directory, count, first)
        for page in self.pages:
            page.begin(0, 1, 1)
            page.beat(0, 0)
        self.pace = AdaptiveInterval(interval, auto)
        self.budgets = [MemoryBudget(first + place, self.pages, directory, first) for place in range(count)]
        self.schedules = [
            StepSchedule(place, self.pages, self.pages[place], self.pace, budget, common=True)
            for place, budget in enumerate(self.budgets)
        ]
        self.schedules[0].write(1)
        self.looks = 0

    def takes(self, step: int) -> bool:
        """Cross the boundary of `step` as Boundary does it; whether all take a snapshot there."""
        taken = []
        for schedule in self.schedules:
            if schedule.idle(step, time.monotonic_ns()):
                taken.append(False)
                continue
            self.looks += 1
            order = schedule.read(step)
            schedule.write(step + 1)
            if order.asks:
                schedule.invalidate_order()
            taken.append(order.snapshot)
        for page in self.pages:
            page.beat(step, 0)
        assert len(set(taken)) == 1
        return taken[0]

    def announce(self, every: int, first: int) -> None:
        for page in self.pages:
            page.announce_interval(every, first)


@pytest.fixture(params=[1, 2])
def nodes(request: pytest.FixtureRequest, memory: Path) -> list[CommonNode]:
    return [CommonNode(memory / "one", 0, request.param), CommonNode(memory / "other", request.param, 2)]


def test_the_announced_interval_holds_from_the_announced_step_on(nodes: list[CommonNode]) -> None:
    taken = []
    for step in range(1, 60):
        if step == 5:
            nodes[0].announce(7, 20)
        if step == 6:
            nodes[1].announce(7, 20)  # seen on the other node one step later
        if step == 30:
            nodes[1].announce(3, 50)
        if step == 35:
            nodes[0].announce(3, 50)
        both = {node.takes(step) for node in nodes}
        assert len(both) == 1, f"another order on each node at step {step}"
        taken += [step] * both.pop()
    assert taken == [*range(1, 20), 21, 28, 35, 42, 49, 51, 54, 57]


def test_what_a_node_itself_would_have_is_told_and_not_followed(nodes: list[CommonNode]) -> None:
    node = nodes[0]
    node.pace.interval = 40
    for step in range(1, 6):
        assert node.takes(step)
    assert node.pages[0].wanted == 40
    assert node.pages[0].memory.interval == 1, "what is followed"
    node.budgets[0].slots = 1
    node.pace.interval = 4
    node.takes(6)
    node.takes(7)
    assert node.pages[0].wanted == 10, "a single slot is overwritten where it lies"
    assert all(page.wanted == 0 for page in node.pages[1:])


def test_a_boundary_before_the_announced_step_is_still_crossed_in_one_look(nodes: list[CommonNode]) -> None:
    node = nodes[1]
    node.announce(100, 3)
    for step in range(1, 10):
        node.takes(step)
    node.looks = 0
    node.announce(5, 50)
    taken = [step for step in range(10, 60) if node.takes(step)]
    assert taken == [50, 55]
    assert node.looks < 15


def test_a_fixed_interval_needs_no_announcement(memory: Path) -> None:
    node = CommonNode(memory / "one", 2, 2, 4, auto=False)
    assert [step for step in range(1, 14) if node.takes(step)] == [4, 8, 12]
    off = CommonNode(memory / "off", 2, 2, 0, auto=False)
    off.announce(3, 2)
    assert not [step for step in range(1, 14) if off.takes(step)], "snapshots are off"


def test_on_one_node_nothing_is_told_and_nothing_is_followed(memory: Path) -> None:
    make_pages(memory, 1)
    [page] = open_pages(memory, 1)
    page.begin(0, 1, 1)
    page.announce_interval(5, 0)
    schedule = StepSchedule(0, [page], page, AdaptiveInterval(2, auto=True), MemoryBudget(0, [page], memory))
    assert [step for step in range(1, 8) if schedule.read(step).snapshot] == [2, 4, 6]
    assert page.wanted == 0
    page.close()


@pytest.fixture
def page(memory: Path) -> Page:
    make_pages(memory, 1)
    return open_pages(memory, 1)[0]


def test_an_announcement_that_is_half_written_changes_nothing(page: Page) -> None:
    announced = AnnouncedInterval(1, page)
    assert (announced.at(9), announced.changes_after(9)) == (1, None)
    page.announce_interval(5, 10)
    assert (announced.at(9), announced.changes_after(9)) == (1, 10)
    assert (announced.at(10), announced.changes_after(10)) == (5, None)
    page.q[266] = 20  # the step is written first
    assert (announced.at(19), announced.at(25)) == (5, 5)
    page.announce_interval(2, 30)
    assert (announced.at(29), announced.at(30)) == (5, 2)


def test_a_new_attempt_begins_without_an_announcement(page: Page) -> None:
    before = page.requests()
    page.announce_interval(5, 10)
    assert page.requests() != before, "it is seen at an ordinary boundary"
    page.clear_requests()
    assert page.announced_interval == (0, -1)
    assert page.requests() == before

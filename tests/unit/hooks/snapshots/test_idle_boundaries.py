"""Boundaries at which nothing is asked are crossed in one look, and no request is seen later for it.

Tried: each of these fails where the look leaves out what its row changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.snapshots import make_pages

from ftlaunch_contract.pages.page import NONE, Page, open_pages
from ftlaunch_contract.pages.words import SCHEDULE
from ftlaunch_contract.protocol import Flag, Why
from ftlaunch_hooks.snapshots.interval import AdaptiveInterval
from ftlaunch_hooks.snapshots.memory_budget import MemoryBudget
from ftlaunch_hooks.snapshots.step_schedule import BoundaryOrder, StepSchedule

NEVER = 1000


class Job:
    """Ranks that cross boundaries together, as Boundary does it."""

    def __init__(self, directory: Path, ranks: int, interval: int = NEVER) -> None:
        make_pages(directory, ranks)
        self.pages = open_pages(directory, ranks)
        self.pace = AdaptiveInterval(interval, auto=False)
        self.budgets = [MemoryBudget(rank, self.pages, directory) for rank in range(ranks)]
        self.schedules = [
            StepSchedule(rank, self.pages, self.pages[rank], self.pace, self.budgets[rank]) for rank in range(ranks)
        ]
        for page in self.pages:
            page.begin(0, 1, 1)
            page.beat(0, 0)
        self.schedules[0].write(1)

    def cross(self, step: int) -> list[BoundaryOrder | None]:
        """What each rank is to do; None where it has seen in one look that there is nothing."""
        found: list[BoundaryOrder | None] = []
        for rank, schedule in enumerate(self.schedules):
            if schedule.idle(step, time.monotonic_ns()):
                found.append(None)
                continue
            found.append(schedule.read(step))
            schedule.write(step + 1)
            if found[rank].asks:  # type: ignore[union-attr]
                schedule.invalidate_order()
        for page in self.pages:
            page.beat(step, 0)
        return found

    def grow(self) -> None:
        self.budgets[-1].progress.grew()

    def persist(self, step: int) -> None:
        self.pages[0].persist_at = step

    def stop(self, step: int) -> None:
        self.pages[0].stop_at = step


@pytest.fixture(params=[1, 2])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    return Job(tmp_path, request.param)


def settled(job: Job) -> None:
    for step in range(1, 6):
        orders = job.cross(step)
    assert orders == [None] * len(orders), "an ordinary boundary"


@pytest.mark.parametrize(
    ("ask", "order"),
    [
        (lambda job: job.persist(6), BoundaryOrder(hold=Why.INTERVAL)),
        (lambda job: job.stop(6), BoundaryOrder(hold=Why.STOP)),
        (lambda job: job.grow(), BoundaryOrder(agree=True)),
    ],
)
def test_a_request_is_seen_at_the_next_order(job: Job, ask: Callable[[Job], None], order: BoundaryOrder) -> None:
    settled(job)
    ask(job)
    alone = len(job.pages) == 1
    if not alone:
        assert job.cross(6)[1] is None, "the order for step 6 was written before the request"
    assert job.cross(6 if alone else 7) == [order] * len(job.pages)


@pytest.mark.parametrize("ask", [Job.persist, Job.stop])
def test_what_is_announced_for_later_is_seen_then(job: Job, ask: Callable[[Job, int], None]) -> None:
    settled(job)
    ask(job, 12)
    orders = {step: job.cross(step) for step in range(6, 13)}
    assert [step for step, found in orders.items() if found[0] is not None and found[0].asks] == [12]
    assert orders[10] == [None] * len(job.pages), "until then boundaries are ordinary"


def test_a_snapshot_that_is_due_is_taken(tmp_path: Path) -> None:
    for ranks in (1, 2):
        directory = tmp_path / str(ranks)
        directory.mkdir()
        job = Job(directory, ranks, interval=5)
        orders = {step: job.cross(step) for step in range(1, 21)}
        assert [s for s, found in orders.items() if all(o is not None and o.snapshot for o in found)] == [5, 10, 15, 20]
        assert orders[8] == [None] * ranks


@pytest.mark.parametrize("ranks", [1, 2])
def test_another_interval_counts_after_the_snapshot_that_changed_it(tmp_path: Path, ranks: int) -> None:
    job = Job(tmp_path, ranks, interval=6)
    taken = []
    for step in range(1, 15):
        order = job.cross(step)[0]
        if order is not None and order.snapshot:
            taken.append(step)
            job.pace.interval = 4
    assert taken == [6, 8, 12]


def test_the_memory_that_is_left_is_looked_at_every_second(job: Job) -> None:
    settled(job)
    now = job.budgets[0].check_at_ns
    assert not job.schedules[0].idle(6, now)
    assert job.schedules[0].idle(6, now - 1)


def test_while_a_step_is_kept_for_the_saver_every_order_says_so(tmp_path: Path) -> None:
    job = Job(tmp_path, 2, interval=4)
    job.persist(2)
    keep = {step: job.cross(step)[1] for step in range(1, 9)}
    assert keep[4] == BoundaryOrder(snapshot=True, keep=2)
    job.pages[0].saved = 2
    assert [job.cross(step)[1] for step in range(9, 13)][-1] == BoundaryOrder(snapshot=True, keep=NONE)


def test_rank_0_waits_for_a_rank_that_is_far_behind(tmp_path: Path) -> None:
    job = Job(tmp_path, 2)
    leader, other = job.schedules[0], job.pages[1]
    other.beat(3, 0)  # and no further
    for step in range(1, SCHEDULE.count + 3):
        if not leader.idle(step, time.monotonic_ns()):
            leader.write(step + 1)
        job.pages[0].beat(step, 0)
    assert not leader.idle(SCHEDULE.count + 3, time.monotonic_ns())
    other.beat(4, 0)
    leader.write(SCHEDULE.count + 4)


def test_a_rank_whose_order_is_not_written_yet_is_not_idle(tmp_path: Path) -> None:
    job = Job(tmp_path, 2)
    settled(job)
    assert not job.schedules[1].idle(8, time.monotonic_ns())


def test_a_rank_that_has_left_its_loop_is_waited_for_no_longer(tmp_path: Path) -> None:
    job = Job(tmp_path, 2)
    gone: Page = job.pages[1]
    gone.beat(3, 0)
    gone.raise_flag(Flag.LOOP_LEFT)
    for step in range(1, 2 * SCHEDULE.count):
        if not job.schedules[0].idle(step, time.monotonic_ns()):
            job.schedules[0].write(step + 1)
        job.pages[0].beat(step, 0)
    assert job.schedules[0].read(2 * SCHEDULE.count) == BoundaryOrder()


def test_how_long_a_rank_without_peers_need_not_look(tmp_path: Path) -> None:
    """Until something is due, or its patience is over, or the memory that is left is to be looked at."""
    job = Job(tmp_path, 1, interval=50)
    settled(job)
    look = job.budgets[0].check_at_ns
    assert job.schedules[0].quiet(look - 7) == (50, look - 7)
    assert job.schedules[0].quiet(look + 7) == (50, look)


def test_a_rank_with_peers_looks_at_every_boundary(tmp_path: Path) -> None:
    """Taken out: without that the others wait for an order that rank 0 does not write."""
    job = Job(tmp_path, 2, interval=50)
    settled(job)
    assert [schedule.quiet(1 << 62) for schedule in job.schedules] == [(0, 0)] * 2

"""The formulas of a plan: against published examples, limits, and a count by hand of drawn failures."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from ftlaunch.tools.planner.model import (
    FailureKind,
    Intervals,
    PlannedJob,
    best,
    daly,
    daly_first,
    effective,
    expected_cycle,
    failures_not_exceeded,
    fewest_checkpoints,
    near,
    shares,
    young,
)

MINUTE, HOUR = 60.0, 3600.0


def storage_only(between: float, *, stall: float = 300.0, restart: float = 600.0, step: float = 60.0) -> PlannedJob:
    """Daly's setting: one layer, written while training waits."""
    return PlannedJob(step, 0.0, stall, stall, (FailureKind("node", 1 / between, 0.0, restart, False),))


def both(**changes: Any) -> PlannedJob:
    """Two layers, all kinds of failure."""
    kinds = (
        FailureKind("process", 1 / (8 * HOUR), 1.0, 100.0, True),
        FailureKind("hang", 1 / (90 * HOUR), 603.0, 100.0, True),
        FailureKind("node", 1 / (5 * HOUR), 10.0, 300.0, False),
    )
    return replace(PlannedJob(4.0, 0.2, 2.0, 150.0, kinds), **changes)


@pytest.mark.parametrize(("between", "minutes"), [(24 * HOUR, 117), (6 * HOUR, 57), (15 * MINUTE, 9.1)])
def test_the_examples_of_daly_2006(between: float, minutes: float) -> None:
    """Figures 3 to 5 of the paper: dumps of 5 minutes, restarts of 10."""
    assert daly(300, between) / MINUTE == pytest.approx(minutes, rel=0.006)
    job = storage_only(between)
    assert best(job).work(job) * best(job).snapshots / MINUTE == pytest.approx(minutes, abs=0.6)


def test_one_layer_is_dalys_complete_model() -> None:
    between, stall, restart, work = 2 * HOUR, 300.0, 600.0, 1800.0
    expected = between * math.exp(restart / between) * math.expm1((work + stall) / between)
    assert expected_cycle(storage_only(between), 60.0, 30) == pytest.approx(expected, rel=1e-12)


def test_few_node_losses_approach_none() -> None:
    """The formula for two layers and the one for snapshots alone meet where they should."""
    process = FailureKind("process", 1 / HOUR, 1.0, 100.0, True)
    alone = PlannedJob(4.0, 0.2, 2.0, 150.0, (process,))
    nearly = replace(alone, kinds=(process, FailureKind("node", 1e-15, 1.0, 100.0, False)))
    assert expected_cycle(nearly, 40.0, 50) == pytest.approx(expected_cycle(alone, 40.0, 50), rel=1e-6)


@pytest.mark.parametrize("between", [1 * HOUR, 10 * HOUR, 1000 * HOUR])
def test_the_optimum_is_near_young_where_saving_is_cheap(between: float) -> None:
    job = storage_only(between, stall=2.0, restart=60.0, step=0.5)
    found = best(job)
    assert found.work(job) * found.snapshots == pytest.approx(young(2.0, between), rel=0.02)
    assert young(2.0, between) == pytest.approx(daly(2.0, between), rel=0.02)
    assert young(2.0, between) == pytest.approx(daly_first(2.0, between, 0.0) + 2.0)


def test_the_snapshot_optimum_too_is_near_young() -> None:
    job = PlannedJob(0.05, 0.1, 0.1, 0.1, (FailureKind("process", 1 / HOUR, 1.0, 30.0, True),))
    assert best(job).work(job) == pytest.approx(young(0.1, HOUR), rel=0.02)


@pytest.mark.parametrize("job", [both(), both(write=5.0, step=0.3), both(snapshot_stall=2.0, write=900.0)])
def test_no_intervals_nearby_are_better(job: PlannedJob) -> None:
    found = best(job)
    least = found.storage_seconds(job)
    assert least >= job.write - 1e-6
    for steps in range(max(found.steps - 3, 1), found.steps + 4):
        for snapshots in range(max(found.snapshots - 4, 1), found.snapshots + 5):
            other = Intervals(steps, snapshots)
            if other.storage_seconds(job) >= job.write:
                assert effective(job, other) <= effective(job, found) + 1e-9


def test_no_failures_leave_all_the_time() -> None:
    never = both(kinds=())
    assert effective(never, Intervals(1_000, 1_000_000)) == pytest.approx(1.0, abs=1e-4)
    assert effective(never, best(never)) > 0.95  # a snapshot at every step
    assert shares(never, best(never)).lost == pytest.approx(0.0, abs=1e-9)


def test_rare_failures_cost_little_and_hopeless_ones_all() -> None:
    assert effective(storage_only(1e9), best(storage_only(1e9))) > 0.999
    hopeless = storage_only(1.0)
    assert effective(hopeless, best(hopeless)) == 0.0
    told = shares(hopeless, best(hopeless))
    assert (told.useful, told.lost) == (0.0, 1.0)


@pytest.mark.parametrize("job", [both(), both(stops=1e-5, stop_cost=500.0), storage_only(HOUR)])
def test_shares_add_up_and_agree(job: PlannedJob) -> None:
    told = shares(job, best(job))
    assert math.fsum(vars(told).values()) == pytest.approx(1.0)
    assert min(vars(told).values()) >= 0
    assert told.useful == pytest.approx(effective(job, best(job)))


def test_the_expectation_is_what_drawn_failures_come_to() -> None:
    """A count that shares nothing with the formulas: one stretch after the other, with its own drawn failure."""
    job, intervals, random_ = both(write=1200.0), Intervals(10, 30), random.Random(7)
    rate, stretch = job.rate, intervals.work(job) + job.snapshot_stall
    unsaved = (job.write - job.checkpoint_stall) / stretch
    cycle = [stretch] * 30 + [job.checkpoint_stall]
    whole = [*cycle, *[stretch] * int(unsaved), stretch * (unsaved - int(unsaved))]  # from a checkpoint to the next
    wall, cycles = 0.0, 6_000
    for _ in range(cycles):
        todo = whole[-len(cycle) :]
        while todo:
            gap = random_.expovariate(rate)
            if gap > todo[0]:
                wall += todo[0]
                todo = todo[1:]
                continue
            wall += gap
            while True:  # down, until nothing comes between; memory lost stays lost
                kind = random_.choices(job.kinds, [kind.rate for kind in job.kinds])[0]
                todo = todo if kind.from_memory else whole
                down, gap = kind.detect + kind.restart, random_.expovariate(rate)
                wall += min(down, gap)
                if gap > down:
                    break
    assert wall / cycles == pytest.approx(expected_cycle(job, intervals.work(job), 30), rel=0.01)


def test_snapshots_that_nothing_survives_are_only_made_for_checkpoints() -> None:
    job = both(kinds=(FailureKind("node", 1 / HOUR, 1.0, 60.0, False),))
    assert best(job).snapshots == 1


def test_how_seldom_checkpoints_may_be() -> None:
    job, found = both(), best(both())
    rare = fewest_checkpoints(job, found, 0.01)
    assert rare.steps == found.steps
    assert effective(job, rare) >= effective(job, found) - 0.01
    assert effective(job, Intervals(rare.steps, rare.snapshots + 1)) < effective(job, found) - 0.01


def test_near_keeps_to_what_is_possible() -> None:
    job = both()
    assert near(job, 0.1, 0.1).steps == 1
    assert near(job, 0.1, 0.1).storage_seconds(job) >= job.write
    assert near(job, math.pi * job.step, 1000.0).steps == 3


def test_a_budget_for_a_bad_day() -> None:
    assert failures_not_exceeded(0.0, 86400.0, 1e-6) == 0
    assert failures_not_exceeded(7.76 / 86400, 86400.0, 1e-6) == 24
    below = math.fsum(math.exp(-7.76) * 7.76**n / math.factorial(n) for n in range(24))
    assert 1 - below > 1e-6
    assert failures_not_exceeded(1.0, 86400.0, 1e-6) > 86400

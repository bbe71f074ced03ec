"""The simulated life of a job, by the real state machine and policy, against the closed form."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest

from ftlaunch.policy.restart_policy import Backoff, RestartLimits
from ftlaunch.tools.planner.model import FailureKind, Intervals, PlannedJob, best, effective, shares
from ftlaunch.tools.planner.simulation import Life, Scene, lives, simulate
from ftlaunch.tools.planner.virtual_training import Training

DAY, HOUR = 86400.0, 3600.0
ENOUGH = RestartLimits(10_000, 10_000, window=DAY)
BACKOFF = Backoff(1.0, 60.0)

PROCESS = FailureKind("process", 1 / (3 * HOUR), 1.0, 60.0, True)
HANG = FailureKind("hang", 1 / (30 * HOUR), 603.0, 60.0, True)
NODE = FailureKind("node", 1 / (4 * HOUR), 10.0, 200.0, False)
DALYS = FailureKind("node", 1 / (6 * HOUR), 0.0, 600.0, False)  # of his second example
STOPS = {"stops": 1 / (12 * HOUR), "stop_cost": 400.0}


def scene(
    job: PlannedJob, days: float = 60, limits: RestartLimits = ENOUGH, intervals: Intervals | None = None
) -> Scene:
    return Scene(job, intervals or best(job), days * DAY, limits, BACKOFF)


def some(the_scene: Scene, count: int = 10, seed: int = 1) -> list[Life]:
    found = list(lives(the_scene, random.Random(seed).random, count))
    for life in found:
        assert math.fsum(life.seconds.values()) == pytest.approx(life.wall)
        assert min(life.seconds.values()) >= -1e-6
    return found


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(PlannedJob(5.0, 0.1, 0.5, 100.0, (PROCESS,)), id="processes", marks=pytest.mark.slow),
        pytest.param(PlannedJob(5.0, 0.1, 0.5, 100.0, (NODE,)), id="nodes", marks=pytest.mark.slow),
        pytest.param(PlannedJob(5.0, 0.1, 0.5, 400.0, (PROCESS, HANG, NODE)), id="all", marks=pytest.mark.slow),
        pytest.param(PlannedJob(5.0, 0.1, 0.5, 200.0, (PROCESS, HANG, NODE), **STOPS), id="stops"),
        pytest.param(PlannedJob(60.0, 0.0, 300.0, 300.0, (DALYS,)), id="daly"),
    ],
)
def test_it_agrees_with_the_closed_form(job: PlannedJob) -> None:
    found = some(scene(job))
    assert all(sum(life.faults.values()) > 100 for life in found)
    expected = shares(job, best(job))
    assert fmean(life.effective for life in found) == pytest.approx(expected.useful, rel=0.01)
    for name, share in vars(expected).items():
        simulated = fmean(life.seconds[name] / life.wall for life in found)
        assert simulated == pytest.approx(share, rel=0.25, abs=0.002), name


@pytest.mark.parametrize(
    "intervals",
    [
        pytest.param(Intervals(1, 400), marks=pytest.mark.slow),
        Intervals(40, 10),
        pytest.param(Intervals(100, 30), marks=pytest.mark.slow),
    ],
)
def test_it_agrees_at_other_intervals_too(intervals: Intervals) -> None:
    job = PlannedJob(5.0, 0.1, 0.5, 400.0, (PROCESS, HANG, NODE))
    found = some(scene(job, intervals=intervals))
    assert fmean(life.effective for life in found) == pytest.approx(effective(job, intervals), rel=0.02)


def test_no_failures_cost_nothing() -> None:
    job = PlannedJob(5.0, 0.0, 0.0, 100.0, ())
    life = simulate(scene(job, days=1, intervals=Intervals(1, 20)), random.Random(0).random)
    assert life.effective == 1.0
    assert life.restarts == life.stops == 0


def test_the_policy_gives_up_where_the_budget_is_used_up() -> None:
    job = PlannedJob(5.0, 0.1, 0.5, 100.0, (PROCESS,))
    life = some(scene(job, limits=RestartLimits(3, 3)), 1)[0]
    assert life.restarts == 3
    assert life.faults == {"process": 4}
    assert "3 of 3 restarts are used up" in life.gave_up
    assert life.wall < 60 * DAY


def test_hangs_have_their_own_budget() -> None:
    job = PlannedJob(5.0, 0.1, 0.5, 100.0, (PROCESS, HANG))
    life = some(scene(job, days=400, limits=RestartLimits(10_000, 2)), 1)[0]
    assert life.faults["hang"] == 3
    assert "2 of 2 restarts after hangs" in life.gave_up


def test_the_same_numbers_give_the_same_life() -> None:
    the_scene = scene(PlannedJob(5.0, 0.1, 0.5, 400.0, (PROCESS, HANG, NODE), **STOPS))
    assert some(the_scene, 2, seed=3) == some(the_scene, 2, seed=3)
    assert some(the_scene, 2, seed=3) != some(the_scene, 2, seed=4)


def test_training_counts_what_is_saved_where() -> None:
    """Steps of 1 s, a snapshot every 2, a checkpoint every 5 snapshots with a stall of 1 s, 4 s to write it."""
    training = Training(PlannedJob(1.0, 0.0, 1.0, 4.0, ()), Intervals(2, 5))
    training.resume(0.0, from_memory=True)
    training.pause(9.9)
    assert training.made == 4  # the fifth is lost
    training.resume(20.0, from_memory=True)
    assert training.to_boundary(20.5) == pytest.approx(1.5)
    training.pause(25.0)  # at 22 the fifth, which becomes a checkpoint; from 23 on training; at 25 the sixth
    assert training.made == 6
    training.lose_writing(25.0)  # it would have been whole at 26
    training.resume(30.0, from_memory=False)
    assert training.made == 0
    training.pause(30.0 + 11 + 10 + 3)  # checkpoints begun at 40 and 51; the second is being written
    assert training.made == 10 + 1
    training.resume(60.0, from_memory=False)  # and was written meanwhile
    assert training.made == 10

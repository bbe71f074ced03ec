"""Makes a plan from figures: intervals by each method, what they cost, and the budget of restarts. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ftlaunch.policy.restart_policy import RestartLimits
from ftlaunch.spec.keys import default
from ftlaunch.tools.planner.figures import DAY, Figure, Figures, job, nodes_of
from ftlaunch.tools.planner.model import (
    Intervals,
    PlannedJob,
    Shares,
    best,
    daly,
    daly_first,
    effective,
    failures_not_exceeded,
    fewest_checkpoints,
    near,
    shares,
    young,
)
from ftlaunch_contract.protocol import MEMORY_SHARE

EXACT = "exact optimum"
DEFAULT_STORAGE: float = default("storage_interval").seconds
_WORTHWHILE = 0.001  # share of effective time: what fewer checkpoints may cost, and what copies must gain
_GPU_HOURS_RANGE = (1.0, 1e9)  # GPU hours per failure among which the edge of what copies are worth is searched
_STATE_BYTES_RANGE = (1e6, 1e17)  # bytes of state among which the edge is searched
_STRIDE = 8  # factor between two values that the search tries
_EXCESS_CHANCE = 1e-6  # chance that a day has more failures than the budget allows


@dataclass(frozen=True)
class Choice:
    """The possible intervals nearest to those of one method, and their effective share of the wall time."""

    name: str
    intervals: Intervals
    effective: float


@dataclass(frozen=True)
class CopiesWorth:
    """What copies of snapshots on other nodes are worth."""

    with_copies: float  # best effective share of the wall time with copies
    without: float  # best effective share without copies
    gpu_hours: float  # GPU hours per failure up to which copies gain a tenth of a percent; 0 if they never do
    state_bytes: float  # bytes of state from which copies gain a tenth of a percent; inf if they never do


@dataclass(frozen=True)
class SavingPlan:
    """A plan: its figures, the intervals by each method, their cost, and the budget of restarts."""

    figures: Figures
    job: PlannedJob
    memory: bool  # whether there are snapshots in memory
    copies: bool  # whether each snapshot is copied to another node
    choices: tuple[Choice, ...]  # the best choice first
    shares: Shares  # of the best choice
    limits: RestartLimits
    worth: CopiesWorth | None  # None if the job has one node, or no snapshots

    @property
    def chosen(self) -> Intervals:
        """The best intervals."""
        return self.choices[0].intervals

    @property
    def storage_needed(self) -> bool:
        """Whether snapshots in memory do not survive some failure or planned stop."""
        return self.job.rate_of(from_memory=False) > 0 or self.job.stops > 0


def plan(figures: Figures, *, memory: bool, copies: bool) -> SavingPlan:
    """Make the plan for complete figures.

    Args:
        figures: the figures, completed by `figures.complete`.
        memory: whether there are snapshots in memory.
        copies: whether each snapshot is copied to another node.
    """
    planned = job(figures, memory=memory, copies=copies)
    optimum = best(planned)
    found = [
        (EXACT, optimum),
        (f"seldom: {_WORTHWHILE:.1%} given up", fewest_checkpoints(planned, optimum, _WORTHWHILE)),
        ("Daly 2006, higher order", _by(planned, lambda stall, gap, _restart: daly(stall, gap))),
        ("Daly 2006, first order", _by(planned, daly_first)),
        ("Young 1974", _by(planned, lambda stall, gap, _restart: young(stall, gap))),
        (
            "ftlaunch's defaults",
            near(planned, max(planned.step, planned.snapshot_stall / MEMORY_SHARE), DEFAULT_STORAGE),
        ),
    ]
    choices = tuple(Choice(name, intervals, effective(planned, intervals)) for name, intervals in found)
    worth = _worth(figures) if memory and nodes_of(figures) > 1 else None
    return SavingPlan(
        figures=figures,
        job=planned,
        memory=memory,
        copies=copies,
        choices=choices,
        shares=shares(planned, choices[0].intervals),
        limits=_limits(planned),
        worth=worth,
    )


def _worth(figures: Figures) -> CopiesWorth:
    """Compute what copies gain, and from which rate of failures and which size of state on they are worthwhile."""

    def gain(name: str, value: float) -> float:
        known = {**figures.known, name: Figure(value, "")}
        return _best_effective(Figures(known), copies=True) - _best_effective(Figures(known), copies=False)

    low, high = _GPU_HOURS_RANGE
    hours = _edge(lambda value: gain("gpu_hours_per_failure", value) >= _WORTHWHILE, low, high)
    smallest, largest = _STATE_BYTES_RANGE
    # `_edge` looks for the greatest value, so the search for the smallest state runs over reciprocals.
    reciprocal = _edge(lambda value: gain("state_bytes", 1 / value) >= _WORTHWHILE, 1 / largest, 1 / smallest)
    return CopiesWorth(
        with_copies=_best_effective(figures, copies=True),
        without=_best_effective(figures, copies=False),
        gpu_hours=0.0 if hours is None else hours,
        state_bytes=math.inf if reciprocal is None else 1 / reciprocal,
    )


def _best_effective(figures: Figures, *, copies: bool) -> float:
    planned = job(figures, memory=True, copies=copies)
    return effective(planned, best(planned))


def _edge(holds: Callable[[float], bool], low: float, high: float) -> float | None:
    """Return the greatest value for which `holds` is true, to one percent.

    `holds` may be false for the least values, too: such a job never ends, with copies or without.

    Returns:
        The value; None if `holds` is false for every value that is tried.
    """
    tried: list[float] = [high / _STRIDE**n for n in range(round(math.log(high / low, _STRIDE)) + 1)]
    found = [value for value in tried if holds(value)]
    if not found or found[0] == high:
        return found[0] if found else None
    good = found[0]
    bad = good * _STRIDE
    while bad / good > 1.01:
        middle = math.sqrt(good * bad)
        if holds(middle):
            good = middle
        else:
            bad = middle
    return good


def _by(planned: PlannedJob, method: Callable[[float, float, float], float]) -> Intervals:
    """Apply a formula for one layer of saves to snapshots and to checkpoints separately.

    A layer that no failure needs gets an infinite interval. Snapshots come at least as often as checkpoints.

    Args:
        planned: the job.
        method: takes the stall, the seconds between failures and the seconds of a restart; returns the interval.
    """
    wanted = []
    for stall, from_memory in ((planned.snapshot_stall, True), (planned.checkpoint_stall, False)):
        rate = planned.rate_of(from_memory)
        kinds = [kind for kind in planned.kinds if kind.from_memory is from_memory]
        restart = math.fsum(kind.rate * (kind.detect + kind.restart) for kind in kinds) / rate if rate > 0 else 0.0
        wanted.append(method(stall, 1 / rate, restart) if rate > 0 else math.inf)
    snapshot, storage = wanted
    return near(planned, min(snapshot, storage), storage)


def _limits(planned: PlannedJob) -> RestartLimits:
    """Return a budget of restarts that only one day in a million exceeds."""
    hangs = math.fsum(kind.rate for kind in planned.kinds if kind.name == "hang")
    return RestartLimits(
        restarts=max(failures_not_exceeded(planned.rate - hangs, DAY, _EXCESS_CHANCE), 1),
        hang_restarts=max(failures_not_exceeded(hangs, DAY, _EXCESS_CHANCE), 1),
        window=DAY,
    )

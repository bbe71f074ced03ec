"""From figures to a plan: intervals by each method, what they cost, and the budget of restarts it takes. Pure."""

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
    most_in,
    near,
    seldom,
    shares,
    young,
)
from ftlaunch_contract.protocol import MEMORY_SHARE

EXACT = "exact optimum"
DEFAULT_STORAGE: float = default("storage_interval").seconds
_SELDOM = 0.001  # effective time that fewer checkpoints may cost, to show how much the interval matters
_HOURS, _STATES = (1.0, 1e9), (1e6, 1e17)  # between which is looked for the edges of what copies are worth
_STRIDE = 8  # from one value that is tried to the next
_TOO_MANY = 1e-6  # chance that a day has more failures than the budget allows


@dataclass(frozen=True)
class Choice:
    """Intervals that a method gives, made possible, and what they come to."""

    name: str
    intervals: Intervals
    effective: float


@dataclass(frozen=True)
class CopiesWorth:
    """What copies of snapshots on other nodes are worth: the best effective time with them and without."""

    with_copies: float
    without: float
    gpu_hours: float  # to a failure: at so many or fewer they are worth a tenth of a percent; 0: at none
    state_bytes: float  # from so many on; inf: from none


@dataclass(frozen=True)
class SavingPlan:
    """The plan: the figures it was made from, the intervals by each method, their cost, and the budget."""

    figures: Figures
    job: PlannedJob
    memory: bool  # there are snapshots
    copies: bool  # each is copied to another node
    choices: tuple[Choice, ...]  # the best first
    shares: Shares  # of the best
    limits: RestartLimits
    worth: CopiesWorth | None  # None where the job has one node, or no snapshots

    @property
    def chosen(self) -> Intervals:
        """The best intervals."""
        return self.choices[0].intervals

    @property
    def storage_needed(self) -> bool:
        """Whether anything happens that memory does not survive."""
        return self.job.rate_of(from_memory=False) > 0 or self.job.stops > 0


def plan(figures: Figures, *, memory: bool, copies: bool) -> SavingPlan:
    """The plan for complete figures. memory: there are snapshots. copies: each is copied to another node."""
    what = job(figures, memory=memory, copies=copies)
    optimum = best(what)
    found = [
        (EXACT, optimum),
        (f"seldom: {_SELDOM:.1%} given up", seldom(what, optimum, _SELDOM)),
        ("Daly 2006, higher order", _by(what, lambda stall, gap, _restart: daly(stall, gap))),
        ("Daly 2006, first order", _by(what, daly_first)),
        ("Young 1974", _by(what, lambda stall, gap, _restart: young(stall, gap))),
        ("ftlaunch's defaults", near(what, max(what.step, what.snapshot_stall / MEMORY_SHARE), DEFAULT_STORAGE)),
    ]
    choices = tuple(Choice(name, intervals, effective(what, intervals)) for name, intervals in found)
    worth = _worth(figures) if memory and nodes_of(figures) > 1 else None
    return SavingPlan(figures, what, memory, copies, choices, shares(what, choices[0].intervals), _limits(what), worth)


def _worth(figures: Figures) -> CopiesWorth:
    def gain(name: str, value: float) -> float:
        known = {**figures.known, name: Figure(value, "")}
        return _best_effective(Figures(known), copies=True) - _best_effective(Figures(known), copies=False)

    hours = _edge(lambda value: gain("gpu_hours_per_failure", value) >= _SELDOM, *_HOURS)
    state = _edge(lambda value: gain("state_bytes", 1 / value) >= _SELDOM, 1 / _STATES[1], 1 / _STATES[0])
    return CopiesWorth(
        _best_effective(figures, copies=True),
        _best_effective(figures, copies=False),
        0.0 if hours is None else hours,
        math.inf if state is None else 1 / state,
    )


def _best_effective(figures: Figures, *, copies: bool) -> float:
    what = job(figures, memory=True, copies=copies)
    return effective(what, best(what))


def _edge(holds: Callable[[float], bool], low: float, high: float) -> float | None:
    """The greatest value for which it holds, to one percent; None where it holds for no value that is tried.

    It may fail for the least values, too (a job that comes to no end with copies or without).
    """
    tried: list[float] = [high / _STRIDE**n for n in range(round(math.log(high / low, _STRIDE)) + 1)]
    found = [value for value in tried if holds(value)]
    if not found or found[0] == high:
        return found[0] if found else None
    good, bad = found[0], found[0] * _STRIDE
    while bad / good > 1.01:
        middle = math.sqrt(good * bad)
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


def _by(what: PlannedJob, method: Callable[[float, float, float], float]) -> Intervals:
    """What a formula for one layer says of each. What no failure needs is made seldom: a snapshot with a checkpoint."""
    wanted = []
    for stall, from_memory in ((what.snapshot_stall, True), (what.checkpoint_stall, False)):
        rate = what.rate_of(from_memory)
        kinds = [kind for kind in what.kinds if kind.from_memory is from_memory]
        restart = math.fsum(kind.rate * (kind.detect + kind.restart) for kind in kinds) / rate if rate > 0 else 0.0
        wanted.append(method(stall, 1 / rate, restart) if rate > 0 else math.inf)
    snapshot, storage = wanted
    return near(what, min(snapshot, storage), storage)


def _limits(what: PlannedJob) -> RestartLimits:
    """A budget that a day as bad as one in a million does not use up."""
    hangs = math.fsum(kind.rate for kind in what.kinds if kind.name == "hang")
    return RestartLimits(
        restarts=max(most_in(what.rate - hangs, DAY, _TOO_MANY), 1),
        hang_restarts=max(most_in(hangs, DAY, _TOO_MANY), 1),
        window=DAY,
    )

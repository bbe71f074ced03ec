"""From figures to a plan: intervals by each method, what they cost, and the budget of restarts it takes. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ftlaunch.policy.restart_policy import RestartLimits
from ftlaunch.spec.keys import default
from ftlaunch.tools.planner.figures import DAY, Figures, job
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
_TOO_MANY = 1e-6  # chance that a day has more failures than the budget allows


@dataclass(frozen=True)
class Choice:
    """Intervals that a method gives, made possible, and what they come to."""

    name: str
    intervals: Intervals
    effective: float


@dataclass(frozen=True)
class SavingPlan:
    """The plan: the figures it was made from, the intervals by each method, their cost, and the budget."""

    figures: Figures
    job: PlannedJob
    memory: bool  # there are snapshots
    choices: tuple[Choice, ...]  # the best first
    shares: Shares  # of the best
    limits: RestartLimits

    @property
    def chosen(self) -> Intervals:
        """The best intervals."""
        return self.choices[0].intervals

    @property
    def storage_needed(self) -> bool:
        """Whether anything happens that memory does not survive."""
        return self.job.rate_of(from_memory=False) > 0 or self.job.stops > 0


def plan(figures: Figures, *, memory: bool, replicated: bool) -> SavingPlan:
    """The plan for complete figures. memory: there are snapshots. replicated: another node has a copy of each."""
    what = job(figures, memory=memory, replicated=replicated)
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
    return SavingPlan(figures, what, memory, choices, shares(what, choices[0].intervals), _limits(what))


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

"""How long a rank may go without a sign of progress: what was asked for, and what `auto` has learned. Pure; seconds.

A limit for each kind of wait, learned from the longest one seen and kept across runs, is NVRx's idea.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ftlaunch.spec.job_spec import JobSpec

Limit = float | None | Literal["auto"]

# `auto`: ten times the longest healthy wait of its kind, within these bounds (floor, ceiling); the ceiling where
# nothing is known yet. The floors are high on purpose: killing a job that was only evaluating costs more than ten
# minutes of a hang, and a short evaluation, or a short end of rank 1, says nothing of the next one, or of rank 0's. A
# ceiling holds only while it is five times the longest healthy wait.
FACTOR, LEAST_FACTOR = 10.0, 5.0
AUTO_CEILING = 3600.0
BOUNDS = {
    "startup": (1800.0, 1800.0),  # up to attach() or the first optimizer step
    "first step": (AUTO_CEILING, AUTO_CEILING),  # of an attempt: it compiles, it fills caches
    "train": (600.0, AUTO_CEILING),
    "eval": (AUTO_CEILING, AUTO_CEILING),
    "checkpoint": (AUTO_CEILING, AUTO_CEILING),
    "teardown": (AUTO_CEILING, AUTO_CEILING),
    "exit": (AUTO_CEILING, AUTO_CEILING),  # of a rank, once another has ended
}
# All but a step and the way to the first one take this many times a `hang_timeout` that was given as a duration. So
# does a rank of an observed script that is busy without a step: it may evaluate, or save. A collective on a GPU that
# waits in vain looks busy too: it is seen at the longer limit.
SLOW_FACTOR = 10.0


@dataclass(frozen=True)
class TimeLimits:
    """What was asked for, by kind of wait, and the longest healthy wait of each kind."""

    asked: Mapping[str, Limit] = field(default_factory=dict)  # "auto" where a kind is missing
    longest: Mapping[str, float] = field(default_factory=dict)
    log: float | None = None  # how long all ranks may go without a line of log
    idle: float | None = None  # how long all ranks may do nothing

    @property
    def hang(self) -> Limit:
        """The limit of a training step, as it was asked for."""
        return self.asked.get("train", "auto")

    def of(self, kind: str, busy: bool = False) -> float | None:
        """The limit of a kind of wait; None: no limit. busy: the rank is seen to do something meanwhile."""
        asked = self.asked.get(kind, "auto")
        if asked != "auto":
            return asked * SLOW_FACTOR if asked is not None and busy and kind == "train" else asked
        if self.hang is None:  # --hang-timeout off turns off what nobody asked for
            return None
        floor, ceiling = BOUNDS[kind]
        if self.hang != "auto" and kind != "startup":
            floor = ceiling = self.hang * SLOW_FACTOR
        elif busy:
            floor = ceiling
        return learned(self.longest.get(kind, 0.0), floor, ceiling)


def learned(longest: float, floor: float, ceiling: float) -> float:
    """The limit that follows from the longest healthy wait; 0: none was seen."""
    if longest <= 0:
        return ceiling
    return max(min(max(FACTOR * longest, floor), ceiling), LEAST_FACTOR * longest)


def asked_by(spec: JobSpec, longest: Mapping[str, float]) -> TimeLimits:
    """The limits of a job."""
    apart = spec.restarts.restart_scope == "rank"  # they need not end together
    asked: dict[str, Limit] = {
        "train": spec.limits.hang_timeout,
        "startup": spec.limits.startup_timeout,
        "eval": spec.limits.eval_timeout,
        "checkpoint": spec.limits.checkpoint_timeout,
        "teardown": spec.limits.teardown_timeout,
        "exit": None if apart and spec.limits.exit_timeout == "auto" else spec.limits.exit_timeout,
    }
    return TimeLimits(asked, longest, spec.limits.log_timeout, spec.limits.idle_timeout)

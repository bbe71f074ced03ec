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
        """Return the limit of a kind of wait, in seconds; None: it has no limit.

        A `hang_timeout` that was given, as a duration or as off, holds for each kind that has no option of its own. The
        first step of an attempt has the option of the start.

        Args:
            busy: the rank makes no step, but is seen to do something. In a script that is only observed it may be
                evaluating, which has an option of its own. A collective on a GPU that waits in vain looks busy as well.
        """
        if busy and kind == "train" and self.hang != "auto":
            kind = "eval"
        asked = self.asked.get("startup" if kind == "first step" else kind, "auto")
        if asked != "auto":
            return asked
        if self.hang != "auto":
            return self.hang
        floor, ceiling = BOUNDS[kind]
        if busy:
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

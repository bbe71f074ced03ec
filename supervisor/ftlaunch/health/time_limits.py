"""How long a rank may go without a sign of progress: what the job asks for, and what `auto` has learned. Pure; seconds.

A limit for each kind of wait, learned from the longest wait seen and kept across runs, is NVRx's idea.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ftlaunch.spec.job_spec import JobSpec

Limit = float | None | Literal["auto"]

# `auto` is ten times the longest healthy wait of a kind, within BOUNDS, and the ceiling as long as no wait is known.
# The floors are high on purpose. Killing a job that was only evaluating costs more than ten minutes of a hang, and one
# short evaluation says nothing about the next, nor does a short end of rank 1 about the end of rank 0. A limit is never
# below five times the longest healthy wait, whatever the ceiling.
FACTOR = 10.0
LEAST_FACTOR = 5.0
AUTO_CEILING_SECONDS = 3600.0
BOUNDS = {  # kind of wait -> floor and ceiling of `auto`, seconds
    "startup": (1800.0, 1800.0),  # up to attach() or the first optimizer step
    "first step": (AUTO_CEILING_SECONDS, AUTO_CEILING_SECONDS),  # of an attempt, which compiles and fills caches
    "train": (600.0, AUTO_CEILING_SECONDS),
    "eval": (AUTO_CEILING_SECONDS, AUTO_CEILING_SECONDS),
    "checkpoint": (AUTO_CEILING_SECONDS, AUTO_CEILING_SECONDS),
    "teardown": (AUTO_CEILING_SECONDS, AUTO_CEILING_SECONDS),
    "exit": (AUTO_CEILING_SECONDS, AUTO_CEILING_SECONDS),  # of a rank, once another rank has ended
}


@dataclass(frozen=True)
class TimeLimits:
    """The limits that a job asks for, and the longest healthy waits from which `auto` is learned."""

    asked: Mapping[str, Limit] = field(
        default_factory=dict
    )  # seconds, None or "auto" by kind; a missing kind is "auto"
    longest: Mapping[str, float] = field(default_factory=dict)  # seconds by kind of wait
    log: float | None = None  # seconds that all ranks may go without a line of log; None: no limit
    idle: float | None = None  # seconds that all ranks may do nothing; None: no limit

    @property
    def hang(self) -> Limit:
        """The limit of a training step, as the job asks for it."""
        return self.asked.get("train", "auto")

    def of(self, kind: str, busy: bool = False) -> float | None:
        """Return the limit of a kind of wait, in seconds; None: no limit.

        A `hang_timeout` that the job gives, as a duration or as off, holds for each kind that has no option of its own.
        The first step of an attempt has the option of the start.

        Args:
            kind: a key of BOUNDS.
            busy: the rank makes no step, but its processes are active. In a script that is only observed the rank may
                be evaluating, which has an option of its own. A collective on a GPU that waits in vain looks busy, too.
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
    """Return the limit that follows from the longest healthy wait, in seconds.

    Args:
        longest: seconds of the longest healthy wait; 0: none was seen.
        floor: seconds; least limit.
        ceiling: seconds; greatest limit, unless it is less than LEAST_FACTOR times `longest`.
    """
    if longest <= 0:
        return ceiling
    return max(min(max(FACTOR * longest, floor), ceiling), LEAST_FACTOR * longest)


def asked_by(spec: JobSpec, longest: Mapping[str, float]) -> TimeLimits:
    """Return the limits of a job.

    Args:
        spec: the job.
        longest: seconds of the longest healthy waits by kind; the limits follow later changes of this mapping.
    """
    is_independent = spec.restarts.restart_scope == "rank"  # such ranks need not end together
    asked: dict[str, Limit] = {
        "train": spec.limits.hang_timeout,
        "startup": spec.limits.startup_timeout,
        "eval": spec.limits.eval_timeout,
        "checkpoint": spec.limits.checkpoint_timeout,
        "teardown": spec.limits.teardown_timeout,
        "exit": None if is_independent and spec.limits.exit_timeout == "auto" else spec.limits.exit_timeout,
    }
    return TimeLimits(asked=asked, longest=longest, log=spec.limits.log_timeout, idle=spec.limits.idle_timeout)

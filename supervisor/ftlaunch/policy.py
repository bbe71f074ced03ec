"""What to do about an incident: restart after a delay, or give up; with a sentence. Pure.

The budget counts over the whole job. The first failure after progress is retried at once; failures without
progress between them wait longer each time, with jitter so that jobs of one cluster do not come back in step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ftlaunch.diagnosis import Cause

# A port taken between choosing and binding it is nobody's failure: retried outside the budget, so often.
PORT_TRIES = 10
_JITTER = 0.25


@dataclass(frozen=True)
class Budget:
    """What has been spent so far."""

    max_restarts: int
    used: int = 0
    in_a_row: int = 0  # failures since the last progress
    port_tries: int = 0  # in a row

    @property
    def left(self) -> int:
        """Restarts left."""
        return self.max_restarts - self.used


@dataclass(frozen=True)
class Verdict:
    """The decision, and the budget after it."""

    restart: bool
    delay: float  # seconds
    sentence: str
    budget: Budget


@dataclass(frozen=True)
class Backoff:
    """Delays between restarts without progress, seconds."""

    first: float
    most: float

    def delay(self, in_a_row: int, random: float) -> float:
        """Nothing for the first failure, then `first` doubled each time up to `most`, 25 % jitter.

        random: uniform in [0, 1).
        """
        if in_a_row <= 1:
            return 0.0
        raw = min(self.first * 2.0 ** min(in_a_row - 2, 30), self.most)
        return raw * (1 - _JITTER + 2 * _JITTER * random)


def judge(cause: Cause, budget: Budget, backoff: Backoff, *, policy: str, progressed: bool, random: float) -> Verdict:
    """The verdict on an incident. `progressed`: a new step was made since the last restart."""
    in_a_row = 1 if progressed else budget.in_a_row + 1
    if cause.kind == "port" and budget.port_tries < PORT_TRIES:
        spent = replace(budget, port_tries=budget.port_tries + 1)
        return Verdict(True, 0.0, f"{cause.sentence}; trying another port", spent)
    if policy == "never":
        return Verdict(False, 0.0, f"{cause.sentence}; not restarting (restart policy: never)", budget)
    if budget.left <= 0:
        tried = f"{budget.max_restarts} of {budget.max_restarts} restarts are used up"
        if budget.max_restarts == 0:
            tried = "no restarts are allowed (--max-restarts 0)"
        return Verdict(False, 0.0, f"{cause.sentence}; giving up: {tried}", budget)
    spent = replace(budget, used=budget.used + 1, in_a_row=in_a_row, port_tries=0)
    delay = backoff.delay(in_a_row, random)
    when = "now" if delay == 0 else f"in {delay:.1f} s"
    rest = f"{spent.left} of {spent.max_restarts} restarts left"
    return Verdict(True, delay, f"{cause.sentence}; restarting {when}, {rest}", spent)

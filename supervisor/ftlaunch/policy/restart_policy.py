"""Judges an incident: restart after a delay, or give up; with a sentence. Pure.

Failures and hangs share one budget, unless hangs are given one of their own. The first failure after progress is
retried at once; failures without progress between them wait longer each time, with jitter so that jobs of one cluster
do not come back in step. A failure that would only repeat ends the job early, whatever is left of the budget.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ftlaunch.common.durations import format_duration
from ftlaunch.common.formatting import counted, times
from ftlaunch.policy.cause_kinds import EXCEPTION_AT_START, OF_THE_MACHINE
from ftlaunch.policy.failure_diagnosis import Cause

# Tries outside the budget when a port is taken between choosing and binding it: that is nobody's failure.
PORT_TRIES = 10
_START_TRIES = 2  # the same error of the script before its first step: it would fail a third time too
_JITTER = 0.25


@dataclass(frozen=True)
class RestartLimits:
    """What may be spent."""

    restarts: int
    hang_restarts: int | None = None  # after hangs, which then do not count as `restarts`; None: they do
    window: float | None = None  # seconds; restarts longer ago do not count; None: all count
    refill_after: int = 0  # steps of progress after which nothing counts as spent; 0: never
    same_error: int = 10  # times in a row; 0: no limit
    without_progress: int = 0  # restarts in a row; 0: no limit


@dataclass(frozen=True)
class Budget:
    """What has been spent so far."""

    limits: RestartLimits
    failures: tuple[float, ...] = ()  # times of the restarts that count
    hangs: tuple[float, ...] = ()  # the same of those after hangs, where they are counted apart
    restarts: int = 0  # all, whether they count or not
    step: int = -1  # the newest step at the last restart that counts
    front: int = -1  # the newest step ever reached, as far as incidents have shown
    in_a_row: int = 0  # failures since the last progress
    signature: str = ""
    same: int = 0  # times in a row, without progress between them, that this signature was seen
    port_tries: int = 0  # in a row

    @property
    def left(self) -> int:
        """Restarts left, but for those after hangs where these are counted apart."""
        return max(self.limits.restarts - len(self.failures), 0)

    @property
    def hangs_left(self) -> int:
        """Restarts left after hangs."""
        apart = self.limits.hang_restarts
        return self.left if apart is None else max(apart - len(self.hangs), 0)

    def noting(self, cause: Cause, *, progressed: bool, now: float, step: int) -> Budget:
        """This budget with the incident noted, and without the restarts that no longer count."""
        refilled = 0 < self.limits.refill_after <= step - max(self.step, 0)
        since = float("inf") if refilled else now - (self.limits.window or float("inf"))
        progressed = progressed and not 0 <= step <= self.front  # steps made again are none
        same = 1 if progressed or cause.signature != self.signature else self.same + 1
        return replace(
            self,
            failures=tuple(at for at in self.failures if at > since),
            hangs=tuple(at for at in self.hangs if at > since),
            front=max(self.front, step),
            in_a_row=1 if progressed else self.in_a_row + 1,
            signature=cause.signature,
            same=same,
        )

    def spending(self, cause: Cause, *, now: float, step: int) -> Budget:
        """After a restart because of `cause`."""
        spent = replace(self, restarts=self.restarts + 1, port_tries=0)
        if cause.kind == "preempted":
            return spent
        if cause.kind == "hang" and self.limits.hang_restarts is not None:
            return replace(spent, hangs=(*self.hangs, now), step=step)
        return replace(spent, failures=(*self.failures, now), step=step)


@dataclass(frozen=True)
class Verdict:
    """The decision, and the budget after it."""

    restart: bool
    delay: float  # seconds
    sentence: str
    budget: Budget
    comes_again: bool = False
    """the job is given up for a reason that another start, on whatever machines, would not mend"""


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
        return self._jittered(min(self.first * 2.0 ** min(in_a_row - 2, 30), self.most), random)

    def longest(self, random: float) -> float:
        """The wait after a failure that only time mends."""
        return self._jittered(self.most, random)

    def _jittered(self, raw: float, random: float) -> float:
        return raw * (1 - _JITTER + 2 * _JITTER * random)


def judge(
    cause: Cause, budget: Budget, backoff: Backoff, *,
    policy: str, progressed: bool, random: float, now: float, step: int, alone: bool = False,
) -> Verdict:  # fmt: skip
    """The verdict on an incident.

    progressed: steps were made since the last restart. now: seconds of any clock. step: the newest that
    all ranks have completed. alone: only the rank that failed is restarted.
    """
    if cause.kind == "port" and budget.port_tries < PORT_TRIES:
        spent = replace(budget, port_tries=budget.port_tries + 1)
        return Verdict(True, 0.0, f"{cause.sentence}; trying another port", spent)
    budget = budget.noting(cause, progressed=progressed, now=now, step=step)
    why_not = _why_not(cause, budget, policy)
    if why_not:
        comes_again = cause.kind not in OF_THE_MACHINE and bool(_would_repeat(cause, budget))
        return Verdict(False, 0.0, f"{cause.sentence}; {why_not}", budget, comes_again)
    wait = policy == "by-cause" and cause.action == "wait"
    delay = backoff.longest(random) if wait else backoff.delay(budget.in_a_row, random)
    spent = budget.spending(cause, now=now, step=step)
    when = "now" if delay == 0 else f"in {delay:.1f} s"
    whom = "it alone " if alone else ""
    return Verdict(True, delay, f"{cause.sentence}; restarting {whom}{when}, {_rest(cause, spent)}", spent)


def may_restart(budget: Budget, policy: str) -> bool:
    """Whether a restart is left for a reason that is no failure, such as a slow rank."""
    return policy != "never" and budget.left > 0


def _why_not(cause: Cause, budget: Budget, policy: str) -> str:
    """Why the job is not to be restarted; empty when it is."""
    if policy == "never":
        return "not restarting (restart policy: never)"
    if policy == "by-cause" and cause.action == "give-up":
        return f"not restarting (restart policy: by-cause, and the rule for {cause.kind} says give-up)"
    return _would_repeat(cause, budget) or _used_up(cause, budget)


def _would_repeat(cause: Cause, budget: Budget) -> str:
    """Why a restart would end as this attempt did; empty when that is not known."""
    limits = budget.limits
    if cause.final:
        return "giving up: it would come again in every attempt"
    if cause.kind == EXCEPTION_AT_START and budget.same >= _START_TRIES:
        return f"giving up: {times(budget.same)} the same error before the first step"
    if 0 < limits.same_error <= budget.same:
        return f"giving up: {times(budget.same)} in a row the same error without a new step (--max-same-error)"
    if 0 < limits.without_progress < budget.in_a_row:
        tried = counted(budget.in_a_row - 1, "restart")
        return f"giving up: {tried} in a row without a new step (--max-without-progress)"
    return ""


def _used_up(cause: Cause, budget: Budget) -> str:
    limits = budget.limits
    if cause.kind == "preempted":
        return ""
    most, what, option = limits.restarts, "restarts", "--max-restarts"
    left = budget.left
    if cause.kind == "hang" and limits.hang_restarts is not None:
        most, what, option = limits.hang_restarts, "restarts after hangs", "--max-hang-restarts"
        left = budget.hangs_left
    if left > 0:
        return ""
    if most == 0:
        return f"giving up: no {what} are allowed ({option} 0)"
    within = f" within {format_duration(limits.window)}" if limits.window else ""
    return f"giving up: {most} of {most} {what}{within} are used up"


def _rest(cause: Cause, budget: Budget) -> str:
    """What is left of the budget, in words."""
    limits = budget.limits
    within = f" within {format_duration(limits.window)}" if limits.window else ""
    if cause.kind == "preempted":
        return f"which does not count: {budget.left} of {limits.restarts} restarts left"
    if cause.kind == "hang" and limits.hang_restarts is not None:
        return f"{budget.hangs_left} of {limits.hang_restarts} restarts after hangs{within} left"
    return f"{budget.left} of {limits.restarts} restarts{within} left"

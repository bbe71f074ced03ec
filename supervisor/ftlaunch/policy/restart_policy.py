"""Judges an incident: restart after a delay, or give up; with a sentence. Pure.

Failures and hangs share one budget, unless hangs have a budget of their own. The first failure after progress is
retried at once. Without progress in between, the delay doubles with each failure, with jitter so that the jobs of a
cluster do not all restart at the same moment. A failure that would only repeat ends the job early, whatever is left of
the budget. A step is always a training step here.
`engine/incidents.py` asks for the verdict, and the planner's simulation does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ftlaunch.common.durations import format_duration
from ftlaunch.common.formatting import counted, times
from ftlaunch.policy.cause_kinds import EXCEPTION_AT_START, HANG, OF_THE_MACHINE, PORT, PREEMPTED
from ftlaunch.policy.failure_diagnosis import Cause

# Tries outside the budget if a port is taken between choosing and binding the port, which is nobody's failure.
PORT_TRIES = 10
_START_TRIES = 2  # failures before the first step with the same error, after which a third try is pointless
_JITTER = 0.25  # share of a delay by which the delay may be shorter or longer


@dataclass(frozen=True)
class RestartLimits:
    """How many restarts a job is allowed."""

    restarts: int
    hang_restarts: int | None = None  # restarts after hangs; None: hangs count among `restarts`
    window: float | None = None  # seconds; restarts longer ago do not count; None: all restarts count
    refill_after: int = 0  # steps of progress after which nothing counts as spent; 0: never
    same_error: int = 10  # failures in a row with the same signature; 0: no limit
    without_progress: int = 0  # restarts in a row without a new step; 0: no limit


@dataclass(frozen=True)
class Budget:
    """The limits of a job, and what the job has spent so far."""

    limits: RestartLimits
    failures: tuple[float, ...] = ()  # times of the restarts that count, seconds
    hangs: tuple[float, ...] = ()  # times of the restarts after hangs, if hangs have a budget of their own; seconds
    restarts: int = 0  # all restarts, whether they count or not, except tries of another port
    step: int = -1  # newest step at the last restart that counts
    newest_step: int = -1  # newest step ever reached, as far as incidents have shown
    in_a_row: int = 0  # failures since the last progress
    signature: str = ""  # of the last failure
    same: int = 0  # failures in a row with this signature, without progress in between
    port_tries: int = 0  # tries in a row because of a taken port

    @property
    def left(self) -> int:
        """Restarts left; if hangs have a budget of their own, restarts left after other failures."""
        return max(self.limits.restarts - len(self.failures), 0)

    @property
    def hangs_left(self) -> int:
        """Restarts left after hangs."""
        allowed = self.limits.hang_restarts
        return self.left if allowed is None else max(allowed - len(self.hangs), 0)

    def after_incident(self, cause: Cause, *, progressed: bool, now: float, step: int) -> Budget:
        """Return this budget with the incident noted, and without the restarts that no longer count.

        Args:
            cause: the cause of the incident.
            progressed: steps were made since the last restart.
            now: seconds, on the clock of `failures` and `hangs`.
            step: newest step that all ranks have completed.
        """
        refilled = 0 < self.limits.refill_after <= step - max(self.step, 0)
        since = float("inf") if refilled else now - (self.limits.window or float("inf"))
        progressed = progressed and not 0 <= step <= self.newest_step  # steps made again are no progress
        same = 1 if progressed or cause.signature != self.signature else self.same + 1
        return replace(
            self,
            failures=tuple(at for at in self.failures if at > since),
            hangs=tuple(at for at in self.hangs if at > since),
            newest_step=max(self.newest_step, step),
            in_a_row=1 if progressed else self.in_a_row + 1,
            signature=cause.signature,
            same=same,
        )

    def after_restart(self, cause: Cause, *, now: float, step: int) -> Budget:
        """Return the budget after a restart because of `cause`.

        Args:
            cause: the cause of the incident.
            now: seconds, on the clock of `failures` and `hangs`.
            step: newest step that all ranks have completed.
        """
        spent = replace(self, restarts=self.restarts + 1, port_tries=0)
        if cause.kind == PREEMPTED:
            return spent
        if cause.kind == HANG and self.limits.hang_restarts is not None:
            return replace(spent, hangs=(*self.hangs, now), step=step)
        return replace(spent, failures=(*self.failures, now), step=step)


@dataclass(frozen=True)
class Verdict:
    """The decision, and the budget after it."""

    restart: bool  # False: give up
    delay: float  # seconds before the restart
    sentence: str  # for people
    budget: Budget
    is_permanent: bool = False  # the job is given up, and another start would fail as well, on whatever machines


@dataclass(frozen=True)
class Backoff:
    """Delays between restarts without progress."""

    first_seconds: float  # the delay after the second failure in a row
    max_seconds: float  # no delay is longer, before the jitter

    def delay(self, in_a_row: int, random: float) -> float:
        """Return the seconds to wait: 0 after the first failure, then `first_seconds`, doubled up to `max_seconds`.

        Args:
            in_a_row: failures since the last progress, this one included.
            random: a uniform random number in [0, 1), for 25 % of jitter.
        """
        if in_a_row <= 1:
            return 0.0
        return self._jittered(min(self.first_seconds * 2.0 ** min(in_a_row - 2, 30), self.max_seconds), random)

    def longest(self, random: float) -> float:
        """Return the seconds to wait after a failure that only time mends. random: uniform in [0, 1)."""
        return self._jittered(self.max_seconds, random)

    def _jittered(self, delay: float, random: float) -> float:
        return delay * (1 - _JITTER + 2 * _JITTER * random)


def judge(
    cause: Cause,
    budget: Budget,
    backoff: Backoff,
    *,
    policy: str,
    progressed: bool,
    random: float,
    now: float,
    step: int,
    alone: bool = False,
) -> Verdict:
    """Return the verdict on an incident.

    Args:
        cause: the cause of the incident.
        budget: what the job has spent before the incident.
        backoff: the delays of the job.
        policy: the restart policy: on-failure, by-cause or never.
        progressed: steps were made since the last restart.
        random: a uniform random number in [0, 1), for the jitter.
        now: seconds, on the clock of the budget's times.
        step: newest step that all ranks have completed.
        alone: only the rank that failed is restarted.
    """
    if cause.kind == PORT and budget.port_tries < PORT_TRIES:
        spent = replace(budget, port_tries=budget.port_tries + 1)
        return Verdict(restart=True, delay=0.0, sentence=f"{cause.sentence}; trying another port", budget=spent)
    budget = budget.after_incident(cause, progressed=progressed, now=now, step=step)
    why_not = _why_not(cause, budget, policy)
    if why_not:
        return Verdict(
            restart=False,
            delay=0.0,
            sentence=f"{cause.sentence}; {why_not}",
            budget=budget,
            is_permanent=cause.kind not in OF_THE_MACHINE and bool(_would_repeat(cause, budget)),
        )
    wait = policy == "by-cause" and cause.action == "wait"
    delay = backoff.longest(random) if wait else backoff.delay(budget.in_a_row, random)
    spent = budget.after_restart(cause, now=now, step=step)
    when = "now" if delay == 0 else f"in {delay:.1f} s"
    whom = "it alone " if alone else ""
    sentence = f"{cause.sentence}; restarting {whom}{when}, {_restarts_left(cause, spent)}"
    return Verdict(restart=True, delay=delay, sentence=sentence, budget=spent)


def may_restart(budget: Budget, policy: str) -> bool:
    """Return whether a restart is left for a reason that is no failure, such as a slow rank."""
    return policy != "never" and budget.left > 0


def _why_not(cause: Cause, budget: Budget, policy: str) -> str:
    """Return why the job is not restarted; empty if the job is restarted."""
    if policy == "never":
        return "not restarting (restart policy: never)"
    if policy == "by-cause" and cause.action == "give-up":
        return f"not restarting (restart policy: by-cause, and the rule for {cause.kind} says give-up)"
    return _would_repeat(cause, budget) or _used_up(cause, budget)


def _would_repeat(cause: Cause, budget: Budget) -> str:
    """Return why a restart would end as this attempt did; empty if no reason is known."""
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
    """Return that no restart is left for this cause, in words; empty if one is left."""
    limits = budget.limits
    if cause.kind == PREEMPTED:
        return ""
    if cause.kind == HANG and limits.hang_restarts is not None:
        allowed = limits.hang_restarts
        what = "restarts after hangs"
        option = "--max-hang-restarts"
        left = budget.hangs_left
    else:
        allowed = limits.restarts
        what = "restarts"
        option = "--max-restarts"
        left = budget.left
    if left > 0:
        return ""
    if allowed == 0:
        return f"giving up: no {what} are allowed ({option} 0)"
    within = f" within {format_duration(limits.window)}" if limits.window else ""
    return f"giving up: {allowed} of {allowed} {what}{within} are used up"


def _restarts_left(cause: Cause, budget: Budget) -> str:
    """Return how many restarts are left after one because of `cause`, in words."""
    limits = budget.limits
    within = f" within {format_duration(limits.window)}" if limits.window else ""
    if cause.kind == PREEMPTED:
        return f"which does not count: {budget.left} of {limits.restarts} restarts left"
    if cause.kind == HANG and limits.hang_restarts is not None:
        return f"{budget.hangs_left} of {limits.hang_restarts} restarts after hangs{within} left"
    return f"{budget.left} of {limits.restarts} restarts{within} left"

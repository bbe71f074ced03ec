"""Judges from views of the ranks whether ranks are late or hung, and says which rank and why. Pure; monotonic seconds.

A rank is late if it has made no progress for longer than the limit of its phase (time_limits.py), or if it does not end
although another rank has. A job can ask for two further rules: silence of all logs, by which AIMaster of Alibaba Cloud
PAI detects hangs, and idleness of all processes. `engine/watch.py` asks in each turn of the event loop.

"Attached" is a rank that has called attach(), so that its page tells its steps. "Observed" is a rank that has not, but
whose optimizer steps are counted. "Mute" is a rank that is neither. "Laggard" is the rank that the others wait for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ftlaunch.common.formatting import duration
from ftlaunch.health.time_limits import TimeLimits
from ftlaunch.ranks.view import RankView

MUTE_FLOOR_SECONDS = 15.0  # least limit of a rank judged by its activity, which is measured every few seconds only
SUSPECT_SHARE = 0.5  # share of the limit after which a silent rank is reported

HangRule = Literal["progress", "exit", "log", "idle", "timeout"]
"""Why a rank counts as late:

- progress: the rank has made no progress for longer than the limit of its phase.
- exit: the rank has neither ended nor made progress although another rank has ended.
- log: no rank has written a line of log.
- idle: no rank has done anything.
- timeout: the rank itself has ended because a collective, or the store, took too long.
"""


class Wait(NamedTuple):
    """One thing that is awaited of a rank: progress, or the end."""

    view: RankView  # the rank
    kind: str  # of the limit that holds: a key of time_limits.BOUNDS
    since: float  # time of the last sign of progress, or later if the rank had to wait for another rank
    idle: bool = False  # the rank does not report its steps, and is judged by its activity


@dataclass(frozen=True)
class Late:
    """A rank that may hang, and what was measured.

    From `late_ranks`: the rank is over its limit, or is the laggard while all ranks are silent (rules log and idle).
    From `suspects`: the rank is over half its limit. From `late_by_timeout`: the rank has ended after a time-out.
    """

    rank: int
    age: float  # seconds since the last sign of progress; of any rank for the rules log and idle
    limit: float  # seconds that `age` may reach; `age` itself for the rule timeout, whose limit is the script's
    phase: str  # of the rank, in lower case
    step: int  # newest step that the rank completed; -1 if unknown
    idle: bool = False  # the rank is judged by its activity
    rule: HangRule = "progress"


def waits(views: Sequence[RankView]) -> list[Wait]:
    """Return what is awaited of each rank: its progress, and also its end once another rank has ended.

    A rank that does not report its steps is judged by its activity, unless other ranks of the job are attached, which
    means that the rank should report its steps as well. If a rank may have to wait for another rank that evaluates or
    saves, the limit of the other rank's phase holds, and the wait begins anew when the other rank is back in training.
    """
    is_job_attached = any(view.attached for view in views)
    others = _RanksByStep(views)
    ends = sorted(view.ended for view in views if view.exited)
    found = []
    for view in views:
        idle = _is_mute(view) and not is_job_attached
        since = max(view.beat, view.started, view.active if idle else 0.0)
        found.append(others.prolong(Wait(view=view, kind=kind_of(view), since=since, idle=idle)))
        if ends and (end := _end_before(view, ends)) is not None:
            found.append(Wait(view=view, kind="exit", since=max(since, end), idle=idle))
    return found


class _RanksByStep:
    """The living ranks in the order of their steps, which spares `prolong` a walk along all ranks for each rank."""

    def __init__(self, views: Sequence[RankView]) -> None:
        self._steps: list[int] = []  # sorted, without repetitions: in a large job thousands of ranks are at one step
        # For each entry of `_steps`, of the ranks up to that step:
        self._returned: list[float] = []  # when the last of them came back to training from a longer phase
        self._longer: list[Wait | None] = []  # the wait that began last among those not in training; None without one
        alive = [view for view in views if not view.exited]
        self._newest_training_beat = max((view.beat for view in alive if view.phase == "train"), default=0.0)
        returned = 0.0
        longer = None
        for view in sorted(alive, key=lambda view: view.step):
            returned = max(returned, view.left)  # `left` is when the rank left the longer phase
            since = max(view.beat, view.started)
            if (kind := kind_of(view)) != "train" and (longer is None or since > longer.since):
                longer = Wait(view, kind, since)
            if self._steps and self._steps[-1] == view.step:
                self._returned[-1] = returned
                self._longer[-1] = longer
            else:
                self._steps.append(view.step)
                self._returned.append(returned)
                self._longer.append(longer)

    def prolong(self, wait: Wait) -> Wait:
        """Return the wait, prolonged if the rank may have to wait for another rank.

        A rank in training may have to wait for a rank that is not ahead and does what takes longer than a step. A rank
        that has left its loop waits for the ranks in training, whose inputs may be longer.
        """
        if wait.kind == "teardown" and self._newest_training_beat > wait.since:
            return Wait(view=wait.view, kind=wait.kind, since=self._newest_training_beat, idle=wait.idle)
        if wait.kind != "train" or not wait.view.attached:
            return wait
        number = bisect_right(self._steps, wait.view.step) - 1
        if number < 0:
            return wait
        since = max(wait.since, self._returned[number])
        longer = self._longer[number]
        if longer is not None:
            return Wait(view=wait.view, kind=longer.kind, since=max(since, longer.since), idle=wait.idle)
        if since == wait.since:  # nearly always: thousands of ranks need no new tuple
            return wait
        return Wait(view=wait.view, kind=wait.kind, since=since, idle=wait.idle)


def _end_before(view: RankView, ends: Sequence[float]) -> float | None:
    """Return when the last other rank ended that ended before this rank; None if no other rank did.

    Args:
        view: this rank.
        ends: times of the ends of all ranks that have ended, sorted.
    """
    number = bisect_right(ends, view.ended) if view.ended > 0 else len(ends)
    if view.exited and number and ends[number - 1] == view.ended:
        number -= 1  # this rank's own end
    return ends[number - 1] if number else None


def kind_of(view: RankView) -> str:
    """Return the kind of limit that holds for a rank's progress: a key of time_limits.BOUNDS."""
    if _is_mute(view):
        return "startup"
    if view.phase in ("eval", "checkpoint", "teardown"):
        return view.phase
    return "train" if view.phase == "train" and view.first_step_done else "first step"


def _is_mute(view: RankView) -> bool:
    """Return whether nothing tells the rank's steps."""
    return not view.attached and not view.observed


def limit_for(wait: Wait, limits: TimeLimits) -> float | None:
    """Return the seconds that a wait may take; None: no limit.

    A program that says nothing about itself has a limit only if the job asks for one.
    """
    view = wait.view
    if wait.idle and not view.beating and limits.asked.get(wait.kind, "auto") == "auto":
        has_hang_limit = isinstance(limits.hang, float)  # the job gives a duration as its hang_timeout
        if not has_hang_limit or wait.kind != "startup":
            return None
        return max(limits.of("train", busy=True) or 0.0, MUTE_FLOOR_SECONDS)
    kind = wait.kind
    if kind == "exit" and view.phase == "teardown":
        asks_for_exit = limits.asked.get("exit", "auto") != "auto"
        asks_for_teardown = limits.asked.get("teardown", "auto") != "auto"
        if asks_for_teardown and not asks_for_exit:
            kind = "teardown"  # the end of another rank does not shorten the limit that the job asks for
    is_busy = view.busy and not _is_mute(view) and (view.observed or limits.hang == "auto")
    return limits.of(kind, busy=is_busy)


def late_ranks(waited: Sequence[Wait], now: float, awake_since: float, limits: TimeLimits) -> list[Late]:
    """Return every living rank over its own limit (rules progress and exit).

    If there is none, but all ranks are silent or idle for longer than the job allows (rules log and idle), return one
    entry, for the laggard.

    Args:
        waited: what is awaited of the ranks.
        now: monotonic seconds.
        awake_since: earliest time from which ages count. The caller moves the time forward after the caller was itself
            held up, because a frozen machine is no hang.
        limits: the job's limits.
    """
    overdue = _overdue(waited, now=now, awake_since=awake_since, limits=limits, share=1.0)
    return overdue or _all_silent(waited, now=now, awake_since=awake_since, limits=limits)


def suspects(waited: Sequence[Wait], now: float, awake_since: float, limits: TimeLimits) -> list[Late]:
    """Return every living rank over half its limit (rules progress and exit), which is reported but not acted on.

    Args:
        waited: what is awaited of the ranks.
        now: monotonic seconds.
        awake_since: earliest time from which ages count, as in `late_ranks`.
        limits: the job's limits.
    """
    return _overdue(waited, now=now, awake_since=awake_since, limits=limits, share=SUSPECT_SHARE)


def late_by_timeout(rank: int, views: Sequence[RankView], now: float) -> Late:
    """Return the entry of a rank that has ended because a collective, or the store, took longer than the script allows.

    Args:
        rank: the rank.
        views: all ranks.
        now: monotonic seconds.

    Raises:
        StopIteration: no view is of `rank`.
    """
    view = next(view for view in views if view.rank == rank)
    age = now - max(view.beat, view.started)
    return Late(rank=rank, age=age, limit=age, phase=view.phase, step=view.step, rule="timeout")


def laggard_entry(late: Sequence[Late], views: Sequence[RankView]) -> Late:
    """Return the entry of the rank that the others wait for; the first entry if that rank is not late.

    Args:
        late: late ranks; not empty.
        views: all ranks.

    Raises:
        ValueError: there are no views.
        IndexError: there are no late ranks.
    """
    culprit = laggard(views)
    return next((entry for entry in late if entry.rank == culprit.rank), late[0])


def _overdue(waited: Sequence[Wait], *, now: float, awake_since: float, limits: TimeLimits, share: float) -> list[Late]:
    """Return every living rank whose wait takes longer than a share of the wait's limit."""
    late = []
    for wait in waited:
        view = wait.view
        age = now - max(wait.since, awake_since)
        limit = limit_for(wait, limits)
        if limit is not None and not view.exited and age > limit * share:
            late.append(
                Late(
                    rank=view.rank,
                    age=age,
                    limit=limit,
                    phase=view.phase,
                    step=view.step,
                    idle=wait.idle,
                    rule="exit" if wait.kind == "exit" else "progress",
                )
            )
    return late


def _all_silent(waited: Sequence[Wait], *, now: float, awake_since: float, limits: TimeLimits) -> list[Late]:
    """Return the laggard if all logs are silent, or all processes idle, for longer than the job allows."""
    if limits.log is None and limits.idle is None:
        return []
    views = [wait.view for wait in waited]
    started = max((view.started for view in views), default=now)
    logged = max((view.logged for view in views), default=now)
    moved = max((max(view.active, view.beat) for view in views), default=now)
    rules: tuple[tuple[HangRule, float, float | None], ...] = (
        ("log", logged, limits.log),
        ("idle", moved, limits.idle),
    )
    for rule, last, limit in rules:
        age = now - max(last, started, awake_since)
        if limit is not None and age > limit:
            view = laggard(views)
            return [Late(rank=view.rank, age=age, limit=limit, phase=view.phase, step=view.step, rule=rule)]
    return []


def laggard(views: Sequence[RankView]) -> RankView:
    """Return the living rank that the others wait for. If no rank is alive, all ranks are candidates.

    Evidence, strongest first: the rank never reported a step, its process is stopped, it has completed fewer steps
    (unless it has left its loop), it has not entered a collective that others are in, its stack does not end in a
    collective while the others' stacks do, its last sign of life is the oldest.

    Raises:
        ValueError: there are no views.
    """
    alive = [view for view in views if not view.exited] or list(views)
    front = max((max(view.step, view.seen) for view in alive), default=0)
    return min(
        alive,
        key=lambda view: (
            view.attached or view.observed,
            not view.stopped,
            front if view.phase == "teardown" else max(view.step, view.seen),
            not view.behind,
            view.waiting is not False,
            view.beat if view.beating else view.active,
            view.rank,
        ),
    )


def measured(late: Late) -> str:
    """Return what was measured, and the limit, in words."""
    limit = f"(limit {duration(late.limit)})"
    if late.rule == "log":
        return f"no rank has written a line of log for {duration(late.age)} {limit}"
    if late.rule == "idle":
        return f"no rank has used a processor, read, written or made a step for {duration(late.age)} {limit}"
    if late.rule == "timeout":
        return f"rank {late.rank} has ended over a time-out of its own, {duration(late.age)} after its last progress"
    if late.rule == "exit":
        return f"rank {late.rank} has neither ended nor moved on for {duration(late.age)} while others are done {limit}"
    return f"rank {late.rank} has made no progress for {duration(late.age)} {limit}"


def describe(late: Late, culprit: RankView) -> str:
    """Return one sentence: which rank has not moved, for how long, and in which phase.

    Args:
        late: the late rank.
        culprit: the rank that the others wait for.
    """
    how = ", its process is stopped (SIGSTOP?)" if culprit.stopped else ""
    if late.rule != "progress":
        at = f"; rank {culprit.rank} is the one to look at" if late.rule != "exit" else ""
        return measured(late) + at + how
    took = f"{duration(late.age)} (limit {duration(late.limit)})"
    if culprit.observed:
        made = f" after {culprit.seen} steps" if culprit.seen else ""
        limit = f"(limit {duration(late.limit)})"
        return f"rank {culprit.rank} is hung: no optimizer step for {duration(late.age)}{made} {limit}{how}"
    if not culprit.attached:
        state = "has not reached attach() or an optimizer step" if culprit.beating else "has not said anything"
        age = duration(late.age)
        limit = f"(limit {duration(late.limit)})"
        passed = f", has done nothing for {age}" if late.idle else f" {age} after its start"
        return f"rank {culprit.rank} {state}{passed} {limit}"
    doing = {"train": "in training", "eval": "in evaluation"}.get(culprit.phase, f"in {culprit.phase}")
    return f"rank {culprit.rank} is hung {doing} after step {culprit.step}: no progress for {took}{how}"

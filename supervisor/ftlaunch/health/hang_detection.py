"""Page and clock -> fine or hung, with the laggard and a reason. Pure; times are monotonic seconds.

Progress is what counts: how long a rank has given no sign of it, against the limit for the phase that it names
(time_limits.py). Judged besides: ranks that do not end when others have, and, where it is asked for, silence of all
logs (PAI AIMaster's rule) and idleness of all processes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ftlaunch.common.formatting import duration
from ftlaunch.health.time_limits import TimeLimits
from ftlaunch.ranks.view import RankView

MUTE_FLOOR = 15.0  # least limit of a rank judged by its activity: that is looked at every few seconds only
SUSPECT_SHARE = 0.5  # of its limit, after which a silent rank is spoken of

HangRule = Literal["progress", "exit", "log", "idle", "timeout"]


class Wait(NamedTuple):
    """A rank that is waited for: for what, and when it last gave a sign."""

    view: RankView
    kind: str  # of limit, see limits.BOUNDS
    since: float
    idle: bool = False  # judged by its activity: it says nothing of its steps


@dataclass(frozen=True)
class Late:
    """A rank that is over its limit."""

    rank: int
    age: float
    limit: float
    phase: str
    step: int
    idle: bool = False  # judged by its activity
    rule: HangRule = "progress"


def waits(views: Sequence[RankView]) -> list[Wait]:
    """What is waited for, of each rank: its progress, and its end once another has ended.

    A rank that says nothing of its steps is judged by its activity, unless others of the job are attached: then it
    is known that it should have been too. A rank may have to wait for one that evaluates, or saves: then that is
    what is waited for, and when the other is back in training this one's wait begins anew.
    """
    hooked = any(view.attached for view in views)
    others, ends = _Others(views), sorted(view.ended for view in views if view.exited)
    found = []
    for view in views:
        idle = _is_mute(view) and not hooked
        since = max(view.beat, view.started, view.active if idle else 0.0)
        found.append(others.waited_for(Wait(view, kind_of(view), since, idle)))
        if ends and (end := _end_before(view, ends)) is not None:
            found.append(Wait(view, "exit", max(since, end), idle))
    return found


class _Others:
    """The ranks alive in the order of their steps: the wait of each is found without looking at all for each."""

    def __init__(self, views: Sequence[RankView]) -> None:
        self._steps: list[int] = []  # each once: in a large job thousands of ranks are at the same
        self._left: list[float] = []  # of those up to a step, when the last came back to training
        self._slow: list[Wait | None] = []  # and the last of those that do something else
        self._training = max((view.beat for view in views if view.phase == "train" and not view.exited), default=0.0)
        left, slow = 0.0, None
        for view in sorted((view for view in views if not view.exited), key=lambda view: view.step):
            left, since = max(left, view.left), max(view.beat, view.started)
            if (kind := kind_of(view)) != "train" and (slow is None or since > slow.since):
                slow = Wait(view, kind, since)
            if self._steps and self._steps[-1] == view.step:
                self._left[-1], self._slow[-1] = left, slow
            else:
                self._steps.append(view.step)
                self._left.append(left)
                self._slow.append(slow)

    def waited_for(self, wait: Wait) -> Wait:
        """The wait itself, or that of another rank which is not ahead and does what takes longer than a step.

        A rank that has left its loop waits for those that train: their inputs may be longer.
        """
        if wait.kind == "teardown" and self._training > wait.since:
            return Wait(wait.view, wait.kind, self._training, wait.idle)
        if wait.kind != "train" or not wait.view.attached:
            return wait
        number = bisect_right(self._steps, wait.view.step) - 1
        if number < 0:
            return wait
        since, slow = max(wait.since, self._left[number]), self._slow[number]
        if slow is None:
            return wait if since == wait.since else Wait(wait.view, wait.kind, since, wait.idle)
        return Wait(wait.view, slow.kind, max(since, slow.since), wait.idle)


def _end_before(view: RankView, ends: Sequence[float]) -> float | None:
    """When the last of the other ranks ended that did so before this one; None: none did. ends: in order."""
    number = bisect_right(ends, view.ended) if view.ended > 0 else len(ends)
    if view.exited and number and ends[number - 1] == view.ended:
        number -= 1  # its own
    return ends[number - 1] if number else None


def kind_of(view: RankView) -> str:
    """Which limit holds for its progress."""
    if _is_mute(view):
        return "startup"
    if view.phase in ("eval", "checkpoint", "teardown"):
        return view.phase
    return "train" if view.phase == "train" and view.first_step_done else "first step"


def _is_mute(view: RankView) -> bool:
    return not view.attached and not view.observed


def limit_for(wait: Wait, limits: TimeLimits) -> float | None:
    """Seconds it may take; None: no limit.

    A program of which nothing is known is judged only where a limit was asked for.
    """
    view = wait.view
    if wait.idle and not view.beating and limits.asked.get(wait.kind, "auto") == "auto":
        known = isinstance(limits.hang, float) and wait.kind == "startup"
        return max(limits.of("train", busy=True) or 0.0, MUTE_FLOOR) if known else None
    kind = wait.kind
    is_ending = kind == "exit" and view.phase == "teardown"
    if is_ending and limits.asked.get("exit", "auto") == "auto" and limits.asked.get("teardown", "auto") != "auto":
        kind = "teardown"  # its end has a limit, which the end of another rank does not shorten
    return limits.of(kind, busy=view.busy and not _is_mute(view) and (view.observed or limits.hang == "auto"))


def late_ranks(waited: Sequence[Wait], now: float, awake_since: float, limits: TimeLimits) -> list[Late]:
    """Every rank over its limit, by any rule.

    awake_since: ages count from here at the earliest; the caller moves it when it was itself held up
    (a frozen machine is no hang).
    """
    return _overdue(waited, now, awake_since, limits, 1.0) or _all_silent(waited, now, awake_since, limits)


def suspects(waited: Sequence[Wait], now: float, awake_since: float, limits: TimeLimits) -> list[Late]:
    """Every rank over half its limit: nothing is done to it, but somebody may want to know."""
    return _overdue(waited, now, awake_since, limits, SUSPECT_SHARE)


def timed_out(rank: int, views: Sequence[RankView], now: float) -> Late:
    """A rank that has ended because a collective, or the store, took longer than the script allows."""
    view = next(view for view in views if view.rank == rank)
    age = now - max(view.beat, view.started)
    return Late(rank, age, age, view.phase, view.step, rule="timeout")


def of_laggard(late: Sequence[Late], views: Sequence[RankView]) -> Late:
    """The one of `late` (not empty) that the others wait for, where it is among them."""
    culprit = laggard(views)
    return next((entry for entry in late if entry.rank == culprit.rank), late[0])


def _overdue(
    waited: Sequence[Wait], now: float, awake_since: float, limits: TimeLimits, share: float
) -> list[Late]:  # fmt: skip
    late = []
    for wait in waited:
        view, age = wait.view, now - max(wait.since, awake_since)
        limit = limit_for(wait, limits)
        if limit is not None and not view.exited and age > limit * share:
            rule: HangRule = "exit" if wait.kind == "exit" else "progress"
            late.append(Late(view.rank, age, limit, view.phase, view.step, wait.idle, rule))
    return late


def _all_silent(waited: Sequence[Wait], now: float, awake_since: float, limits: TimeLimits) -> list[Late]:
    """The laggard, where no rank writes a line, or none does anything, for longer than was asked for."""
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
            return [Late(view.rank, age, limit, view.phase, view.step, rule=rule)]
    return []


def laggard(views: Sequence[RankView]) -> RankView:
    """The rank the others wait for, of those alive.

    Evidence, strongest first: it never began to beat, its process is stopped, it has completed fewer
    steps (unless it has left its loop), it has not entered a collective that others are in, its stack does not end in a
    collective while others' do, its last sign of life is the oldest.
    """
    alive = [view for view in views if not view.exited] or list(views)
    front = max((max(view.step, view.seen) for view in alive), default=0)
    return min(
        alive,
        key=lambda v: (
            v.attached or v.observed,
            not v.stopped,
            front if v.phase == "teardown" else max(v.step, v.seen),
            not v.behind,
            v.waiting is not False,
            v.beat if v.beating else v.active,
            v.rank,
        ),
    )


def measured(late: Late) -> str:
    """What was measured, and against what."""
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
    """One sentence: who has not moved, for how long, in what."""
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
        age, limit = duration(late.age), f"(limit {duration(late.limit)})"
        passed = f", has done nothing for {age}" if late.idle else f" {age} after its start"
        return f"rank {culprit.rank} {state}{passed} {limit}"
    doing = {"train": "in training", "eval": "in evaluation"}.get(culprit.phase, f"in {culprit.phase}")
    return f"rank {culprit.rank} is hung {doing} after step {culprit.step}: no progress for {took}{how}"

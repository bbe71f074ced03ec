"""Page and clock -> fine or hung, with the laggard and a reason. Pure; times are monotonic seconds.

Progress is what counts: the age of a rank's last beat, against a limit for what it says it is doing. The
ideas of separate limits per phase and of a limit learned from the longest step seen are NVRx's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ftlaunch.text import duration

Limit = float | None | Literal["auto"]

# `auto`: ten times the longest step seen, within these bounds; the most where nothing is known yet. The floor is
# high on purpose: killing a job that was only evaluating costs more than ten minutes of a hang.
AUTO_FACTOR, AUTO_FLOOR, AUTO_CEILING = 10.0, 600.0, 3600.0
AUTO_STARTUP = 1800.0
# The first step of an attempt (it compiles, it fills caches), evaluation, checkpoints and teardown take
# longer than a step: they get this many times a limit that was given as a duration.
SLOW_FACTOR = 10.0


@dataclass(frozen=True)
class RankView:
    """What is known of a rank at a moment."""

    rank: int
    started: float  # when its process was started
    beating: bool  # its page speaks for this attempt
    attached: bool
    phase: str  # Phase's name, lower case
    step: int  # completed; -1 before attach() knows
    beat: float  # time of the last beat; 0 where it does not beat
    first_step_done: bool
    longest_step: float  # longest step seen in this attempt
    exited: bool
    stopped: bool = False  # its process is stopped (SIGSTOP)
    waiting: bool | None = None  # its stack ends inside a collective; None: not known


@dataclass(frozen=True)
class Late:
    """A rank whose progress is over its limit."""

    rank: int
    age: float
    limit: float
    phase: str
    step: int


def limit_for(view: RankView, hang: Limit, startup: Limit) -> float | None:
    """Seconds this rank may go without a beat in what it is doing now; None: no limit."""
    if not view.attached:
        return AUTO_STARTUP if startup == "auto" else startup
    if hang is None:
        return None
    slow = view.phase != "train" or not view.first_step_done
    if hang == "auto":
        learned = min(max(AUTO_FACTOR * view.longest_step, AUTO_FLOOR), AUTO_CEILING)
        return AUTO_CEILING if slow else learned
    return hang * SLOW_FACTOR if slow else hang


def late_ranks(views: Sequence[RankView], now: float, awake_since: float, hang: Limit, startup: Limit) -> list[Late]:
    """Every rank over its limit.

    awake_since: ages count from here at the earliest; the caller moves it when it was itself held up
    (a frozen machine is no hang). A startup limit of `auto` judges only jobs that are known to use the
    hooks, because some rank beats: an ordinary script never reaches a first beat.
    """
    hooked = any(view.beating for view in views)
    late = []
    for view in views:
        limit = limit_for(view, hang, startup)
        if limit is None or view.exited or (startup == "auto" and not hooked):
            continue
        if startup == "auto" and not view.attached and hang is None:
            continue  # --hang-timeout off turns off what nobody asked for
        age = now - max(view.beat, view.started, awake_since)
        if age > limit:
            late.append(Late(view.rank, age, limit, view.phase, view.step))
    return late


def next_check(views: Sequence[RankView], now: float, hang: Limit, startup: Limit) -> float:
    """When, at the earliest, a rank can be over its limit; infinity when nothing is judged."""
    limits = [
        max(view.beat, view.started) + limit
        for view in views
        if not view.exited and (limit := limit_for(view, hang, startup)) is not None
    ]
    return max(min(limits, default=float("inf")), now)


def laggard(views: Sequence[RankView]) -> RankView:
    """The rank the others wait for, of those alive.

    Evidence, strongest first: it never began to beat, its process is stopped, it has completed fewer
    steps, its stack does not end in a collective while others' do, its last beat is the oldest.
    """
    alive = [view for view in views if not view.exited] or list(views)
    return min(
        alive,
        key=lambda v: (
            v.attached,
            not v.stopped,
            v.step,
            v.waiting is not False,
            v.beat,
            v.rank,
        ),
    )


def describe(late: Late, culprit: RankView) -> str:
    """One sentence: who has not moved, for how long, in what."""
    if not culprit.attached:
        state = "has not reached attach() or its first beat" if culprit.beating else "has not beaten once"
        return f"rank {culprit.rank} {state} {duration(late.age)} after its start (limit {duration(late.limit)})"
    doing = {"train": "in training", "eval": "in evaluation"}.get(culprit.phase, f"in {culprit.phase}")
    how = ", its process is stopped (SIGSTOP?)" if culprit.stopped else ""
    return (
        f"rank {culprit.rank} is hung {doing} after step {culprit.step}: "
        f"no progress for {duration(late.age)} (limit {duration(late.limit)}){how}"
    )

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
# So does an observed script that is busy without a step: it may evaluate, or save. A collective on a GPU that waits
# in vain looks busy too: it is seen at the longer limit.
# Activity is looked at every few seconds only.
MUTE_FLOOR = 15.0
SUSPECT_SHARE = 0.5  # of its limit, after which a silent rank is spoken of


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
    observed: bool = False  # not attached, but its optimizers' steps are seen
    seen: int = 0  # of these, how many
    active: float = 0.0  # when its processes last did anything; of those that are not attached
    busy: bool = False  # they have been doing something since its last beat
    waiting: bool | None = None  # its stack ends inside a collective; None: not known


@dataclass(frozen=True)
class Late:
    """A rank whose progress is over its limit."""

    rank: int
    age: float
    limit: float
    phase: str
    step: int
    idle: bool = False  # judged by its activity: it says nothing of its steps


def limit_for(view: RankView, hang: Limit, startup: Limit, hooked: bool = False) -> float | None:
    """Seconds this rank may go without a beat in what it is doing now; None: no limit.

    hooked: some rank of the job is attached.
    """
    if _is_mute(view):
        return _mute_limit(view, hang, startup, hooked)
    if hang is None:
        return None
    slow = view.phase != "train" or not view.first_step_done or (view.observed and view.busy)
    if hang == "auto":
        learned = min(max(AUTO_FACTOR * view.longest_step, AUTO_FLOOR), AUTO_CEILING)
        return AUTO_CEILING if slow else learned
    return hang * SLOW_FACTOR if slow else hang


def _is_mute(view: RankView) -> bool:
    return not view.attached and not view.observed


def _mute_limit(view: RankView, hang: Limit, startup: Limit, hooked: bool) -> float | None:
    """The limit of a rank that says nothing of its steps."""
    if startup != "auto":
        return startup
    if hang is None:  # --hang-timeout off turns off what nobody asked for
        return None
    if hooked or view.beating:
        return AUTO_STARTUP
    return None if hang == "auto" else max(hang * SLOW_FACTOR, MUTE_FLOOR)


def late_ranks(views: Sequence[RankView], now: float, awake_since: float, hang: Limit, startup: Limit) -> list[Late]:
    """Every rank over its limit.

    awake_since: ages count from here at the earliest; the caller moves it when it was itself held up
    (a frozen machine is no hang). A rank that says nothing of its steps is judged by its activity, unless others of
    the job are attached: then it is known that it should have been too. A program without torch is judged only
    where a limit was asked for.
    """
    return _overdue(views, now, awake_since, hang, startup, 1.0)


def suspects(views: Sequence[RankView], now: float, awake_since: float, hang: Limit, startup: Limit) -> list[Late]:
    """Every rank over half its limit: nothing is done to it, but somebody may want to know. As late_ranks."""
    return _overdue(views, now, awake_since, hang, startup, SUSPECT_SHARE)


def of_laggard(late: Sequence[Late], views: Sequence[RankView]) -> Late:
    """The one of `late` (not empty) that the others wait for, where it is among them."""
    culprit = laggard(views)
    return next((entry for entry in late if entry.rank == culprit.rank), late[0])


def _overdue(
    views: Sequence[RankView], now: float, awake_since: float, hang: Limit, startup: Limit, share: float
) -> list[Late]:
    hooked = any(view.attached for view in views)
    late = []
    for view in views:
        limit = limit_for(view, hang, startup, hooked)
        if limit is None or view.exited:
            continue
        idle = _is_mute(view) and not hooked
        age = now - max(view.beat, view.started, view.active if idle else 0.0, awake_since)
        if age > limit * share:
            late.append(Late(view.rank, age, limit, view.phase, view.step, idle))
    return late


def laggard(views: Sequence[RankView]) -> RankView:
    """The rank the others wait for, of those alive.

    Evidence, strongest first: it never began to beat, its process is stopped, it has completed fewer
    steps, its stack does not end in a collective while others' do, its last beat is the oldest.
    """
    alive = [view for view in views if not view.exited] or list(views)
    return min(
        alive,
        key=lambda v: (
            v.attached or v.observed,
            not v.stopped,
            max(v.step, v.seen),
            v.waiting is not False,
            v.beat,
            v.rank,
        ),
    )


def describe(late: Late, culprit: RankView) -> str:
    """One sentence: who has not moved, for how long, in what."""
    if culprit.observed:
        return (
            f"rank {culprit.rank} is hung: no optimizer step for {duration(late.age)} (limit {duration(late.limit)})"
            + (", its process is stopped (SIGSTOP?)" if culprit.stopped else "")
        )
    if not culprit.attached:
        state = "has not reached attach() or an optimizer step" if culprit.beating else "has not said anything"
        how = f", has done nothing for {duration(late.age)}" if late.idle else f" {duration(late.age)} after its start"
        return f"rank {culprit.rank} {state}{how} (limit {duration(late.limit)})"
    doing = {"train": "in training", "eval": "in evaluation"}.get(culprit.phase, f"in {culprit.phase}")
    how = ", its process is stopped (SIGSTOP?)" if culprit.stopped else ""
    return (
        f"rank {culprit.rank} is hung {doing} after step {culprit.step}: "
        f"no progress for {duration(late.age)} (limit {duration(late.limit)}){how}"
    )

"""Frozen views of the ranks as seen from outside. The engine decides from views. Pure; times are monotonic seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ftlaunch_contract.protocol import Resume


class RankView(NamedTuple):
    """What is known of a rank at one moment.

    A tuple and not a dataclass, because each observation of a large job makes sixteen thousand of them.
    """

    rank: int
    started: float  # when the process was started
    beating: bool  # whether the page was written in this attempt
    attached: bool  # whether the worker reports its steps
    phase: str  # name of the Phase, in lower case
    step: int  # last completed step; -1 before attach() knows
    beat: float  # time of the last beat; 0 if the rank is not beating
    first_step_done: bool  # whether a step was completed in this attempt
    exited: bool  # whether the process has been reaped
    ended: float = 0.0  # when the end was seen
    stopped: bool = False  # whether the process is stopped (SIGSTOP)
    observed: bool = False  # whether the rank is not attached, but steps of its optimizers are counted
    seen: int = 0  # number of these optimizer steps
    active: float = 0.0  # when the rank's processes last did anything; only of ranks whose activity is measured
    busy: bool = False  # whether the processes have been active since the last beat
    left: float = 0.0  # when the rank last came back to training from a longer phase, such as saving
    logged: float = 0.0  # when the log last grew; 0 if nobody observes the log
    waiting: bool | None = None  # whether the main thread waits for other ranks; None if unknown
    behind: bool = False  # whether the rank has not entered a collective that another rank is in
    step_seconds: float = 0.0  # duration of the last step
    resumed: tuple[Resume, int] | None = None  # the source and the step of the restored state; None if unknown
    own: tuple[int, float] = (0, 0.0)  # number of measured steps, and the seconds of them without waiting for others


def any_attached(views: Sequence[RankView]) -> bool:
    """Return whether some rank reports its steps, which means that the job uses the hooks."""
    return any(view.attached for view in views)


def all_attached(views: Sequence[RankView]) -> bool:
    """Return whether every rank polls its page."""
    return all(view.attached for view in views)


def least_step(views: Sequence[RankView]) -> int:
    """Return the newest step that all ranks have completed; -1 while some rank's step is unknown."""
    return min((view.step for view in views), default=-1)


def completed_at(views: Sequence[RankView], step: int) -> float:
    """Return when the last rank completed `step`: the newest beat of the ranks at that step; 0 without such a rank.

    Args:
        views: all ranks.
        step: the step that `least_step` returned.
    """
    return max((view.beat for view in views if view.beating and view.step == step), default=0.0)


def front(views: Sequence[RankView]) -> tuple[int, float]:
    """Return the newest step that any rank has completed, and the shortest step time of any rank in seconds."""
    newest = max((view.step for view in views if view.beating), default=0)
    shortest_seconds = min((view.step_seconds for view in views if view.step_seconds > 0), default=0.0)
    return max(newest, 0), shortest_seconds


def own_times(views: Sequence[RankView]) -> dict[int, tuple[int, float]]:
    """Return for each living rank the number of measured steps, and the seconds in which the rank did not wait."""
    return {view.rank: view.own for view in views if not view.exited}

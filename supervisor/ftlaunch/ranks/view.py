"""What is seen of the ranks from outside, frozen: decisions are made from views. Pure; times are monotonic seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ftlaunch_contract.protocol import Resume


class RankView(NamedTuple):
    """What is known of a rank at a moment. A tuple: sixteen thousand are made at each look at a large job."""

    rank: int
    started: float  # when its process was started
    beating: bool  # its page speaks for this attempt
    attached: bool
    phase: str  # Phase's name, lower case
    step: int  # completed; -1 before attach() knows
    beat: float  # time of the last beat; 0 where it does not beat
    first_step_done: bool
    exited: bool
    ended: float = 0.0  # when its end was seen
    stopped: bool = False  # its process is stopped (SIGSTOP)
    observed: bool = False  # not attached, but its optimizers' steps are seen
    seen: int = 0  # of these, how many
    active: float = 0.0  # when its processes last did anything; of those that are looked at
    busy: bool = False  # they have been doing something since its last beat
    left: float = 0.0  # when it last came back to training from something that takes longer
    logged: float = 0.0  # when its log last grew; 0 where nobody asks
    waiting: bool | None = None  # its main thread waits for other ranks; None: not known
    behind: bool = False  # it has not entered a collective that another rank is in
    step_seconds: float = 0.0  # duration of its last step
    resumed: tuple[Resume, int] | None = None  # what it has restored: from where, and the step; None: not known
    own: tuple[int, float] = (0, 0.0)  # steps measured, and seconds of them that were its own doing


def any_attached(views: Sequence[RankView]) -> bool:
    """Whether some rank reports its steps: the job uses the hooks."""
    return any(view.attached for view in views)


def all_attached(views: Sequence[RankView]) -> bool:
    """Whether every rank polls its page."""
    return all(view.attached for view in views)


def least_step(views: Sequence[RankView]) -> int:
    """The newest step that all ranks have completed; -1 while one does not know."""
    return min((view.step for view in views), default=-1)


def completed_at(views: Sequence[RankView], step: int) -> float:
    """When the last rank completed `step`, which is the least one: the newest beat of the ranks at that step."""
    return max((view.beat for view in views if view.beating and view.step == step), default=0.0)


def front(views: Sequence[RankView]) -> tuple[int, float]:
    """The newest step that any rank has completed, and the shortest step time there is, in seconds."""
    newest = max((view.step for view in views if view.beating), default=0)
    return max(newest, 0), min((view.step_seconds for view in views if view.step_seconds > 0), default=0.0)


def own_times(views: Sequence[RankView]) -> dict[int, tuple[int, float]]:
    """For each living rank: steps measured, and seconds of them that were its own doing."""
    return {view.rank: view.own for view in views if not view.exited}

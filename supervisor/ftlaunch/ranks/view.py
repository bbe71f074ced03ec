"""What is seen of the ranks from outside, frozen: what decisions are made from."""

from __future__ import annotations

from dataclasses import dataclass


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

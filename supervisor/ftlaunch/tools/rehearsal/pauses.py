"""Where a loop pauses between two steps: an epoch ends, an evaluation runs, another loop comes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median

_LONG_FACTOR, _LONG_SECONDS = 3.0, 0.05  # of the ordinary time between two steps, and at least: what counts as a pause


@dataclass(frozen=True)
class Pause:
    """A long time between two steps.

    step: the pause is behind the n-th step. seconds: its length. phase: what the ranks said in it, such as `eval`.
    """

    step: int
    seconds: float
    phase: str


class StepTimes:
    """Notes when steps are seen to be complete; monotonic seconds."""

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}
        self._phases: dict[int, str] = {}

    def note(self, step: int, phase: str, now: float) -> None:
        """Note that `step` was the newest complete step at this moment, and what the ranks were doing."""
        self._seen.setdefault(step, now)
        if phase != "train" or step not in self._phases:
            self._phases[step] = phase

    def longest_pause(self, steps: int) -> Pause | None:
        """Return the longest pause behind one of the steps 1 to `steps` - 1; None where all come evenly."""
        seen = sorted(self._seen.items())
        gaps = {step: later - at for (step, at), (_, later) in pairwise(seen) if 0 < step < steps}
        if not gaps:
            return None
        ordinary = (seen[-1][1] - seen[0][1]) / max(seen[-1][0] - seen[0][0], 1)
        ordinary = min(ordinary, median(gaps.values()))
        step = max(gaps, key=lambda one: gaps[one])
        is_long = gaps[step] >= max(_LONG_SECONDS, _LONG_FACTOR * ordinary)
        return Pause(step, gaps[step], self._phases[step]) if is_long else None

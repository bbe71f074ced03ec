"""Finds the longest pause of a training loop between two steps, such as the end of an epoch or an evaluation. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median

# A gap between two steps is a pause if it is both three times as long as an ordinary gap and 50 ms long.
_LONG_FACTOR = 3.0
_LONG_SECONDS = 0.05


@dataclass(frozen=True)
class Pause:
    """A long time between two steps."""

    step: int
    """number of the step before the pause"""
    seconds: float
    """length of the pause"""
    phase: str
    """phase that the ranks reported in the pause, such as `eval`"""


class StepTimes:
    """Records when steps were first seen complete, in monotonic seconds."""

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}
        self._phases: dict[int, str] = {}

    def note(self, step: int, phase: str, now: float) -> None:
        """Record that `step` was the newest complete step at the time `now`, and the ranks' phase."""
        self._seen.setdefault(step, now)
        if phase != "train" or step not in self._phases:
            self._phases[step] = phase

    def longest_pause(self, steps: int) -> Pause | None:
        """Return the longest pause after one of the steps 1 to `steps` - 1; None if all steps come evenly."""
        seen = sorted(self._seen.items())
        gaps = {step: later - at for (step, at), (_, later) in pairwise(seen) if 0 < step < steps}
        if not gaps:
            return None
        ordinary = (seen[-1][1] - seen[0][1]) / max(seen[-1][0] - seen[0][0], 1)
        ordinary = min(ordinary, median(gaps.values()))
        step = max(gaps, key=lambda step: gaps[step])
        is_long = gaps[step] >= max(_LONG_SECONDS, _LONG_FACTOR * ordinary)
        return Pause(step, gaps[step], self._phases[step]) if is_long else None

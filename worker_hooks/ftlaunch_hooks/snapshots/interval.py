"""How many steps lie between snapshots: as many as were asked for, or as many as keep their cost small."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

SHARE = 0.01  # of the time of a step: what snapshots may cost
MOST = 1000  # steps between snapshots, however much they cost
_SAMPLES = 8  # the first three make their memory and are far slower: a median leaves them out
_SLACK = 0.7  # an interval is made shorter only when it becomes shorter than this part of the old one


class AdaptiveInterval:
    """The interval between snapshots. Rank 0 measures it, all ranks follow."""

    def __init__(self, interval: int, auto: bool) -> None:
        """interval: steps, 0 is never. auto: begin with `interval`, and adapt it."""
        self.interval, self._auto = interval, auto
        self._stalls: deque[float] = deque(maxlen=_SAMPLES)
        self._steps: deque[float] = deque(maxlen=4 * _SAMPLES)
        self._stall = 0.0

    def note(self, seconds: float, stalled: float, taken: bool) -> None:
        """A step is over: it took `seconds`, of which snapshots cost `stalled`; it ended with a snapshot if `taken`."""
        if not self._auto:
            return
        self._steps.append(max(seconds - stalled, 0.0))
        self._stall += stalled
        if not taken:
            return
        self._stalls.append(self._stall)
        self._stall = 0.0
        if len(self._stalls) == _SAMPLES:
            self._adapt()

    def _adapt(self) -> None:
        least = wanted(median(self._stalls), median(self._steps))
        if least > self.interval or least < _SLACK * self.interval:
            self.interval = least
        self._stalls.clear()


def wanted(stall: float, step: float) -> int:
    """The fewest steps between snapshots of `stall` seconds each for which they cost no more than SHARE of `step`."""
    if stall <= 0.0:
        return 1
    return max(1, min(MOST, math.ceil(stall / (SHARE * step)))) if step > 0.0 else MOST

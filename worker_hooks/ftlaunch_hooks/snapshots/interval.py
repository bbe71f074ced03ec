"""How many steps lie between snapshots: as many as were asked for, or as few as keep their cost small.

Pure apart from reading a page; the StepSchedule of the node's first rank uses it.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.protocol import MEMORY_SHARE

MOST = 1_000_000  # steps; the longest interval, however much snapshots cost
_SAMPLES = 8  # number of the newest snapshots whose cost counts
_WARM_UP = 3  # number of first snapshots of which the cheapest counts, because the first ones also warm up
_MAX_GROWTH = 8  # the interval grows at most by this factor at a time, so that a wrong measurement is soon corrected
_SLACK = 0.2  # part by which a new interval must differ, so that a settled one does not move with every snapshot


class AdaptiveInterval:
    """The interval between snapshots. The node's first rank measures it; all its ranks follow."""

    def __init__(self, interval: int, auto: bool) -> None:
        """Begin with `interval` steps; 0 is never. auto: adapt the interval to the cost of snapshots."""
        self.interval = interval
        self._auto = auto
        self._stalls: deque[float] = deque(maxlen=_SAMPLES)  # seconds that each snapshot has cost
        self._steps: deque[float] = deque(maxlen=4 * _SAMPLES)  # seconds that each step has taken without snapshots
        self._stall = 0.0  # seconds since the last snapshot

    @property
    def is_auto(self) -> bool:
        """Whether the interval is adapted to the cost of snapshots."""
        return self._auto

    def fix(self, interval: int) -> None:
        """Keep to `interval` steps from now on."""
        self.interval = interval
        self._auto = False

    def stepped(self, nanoseconds: int) -> None:
        """Record a step of this duration that had no snapshot and spent no time on one."""
        if self._auto:
            self._steps.append(nanoseconds / 1e9)

    def note(self, seconds: float, stalled: float, once: float, has_snapshot: bool) -> None:
        """Record a step, and adapt the interval after a snapshot.

        Args:
            seconds: duration of the step.
            stalled: the seconds of it that snapshots have cost.
            once: the seconds of `stalled` that the next snapshots will not cost again.
            has_snapshot: whether the step ended with a snapshot.
        """
        if not self._auto:
            return
        self._steps.append(max(seconds - stalled, 0.0))
        self._stall += stalled - once
        if not has_snapshot:
            return
        self._stalls.append(self._stall)
        self._stall = 0.0
        typical = min(self._stalls) if len(self._stalls) <= _WARM_UP else median(self._stalls)
        least = min(wanted(typical, median(self._steps)), _MAX_GROWTH * self.interval)
        if abs(least - self.interval) > _SLACK * self.interval:
            self.interval = least


class AnnouncedInterval:
    """The interval of a job on several nodes, which the supervisor announces so that all nodes snapshot the same steps.

    If each node took its own steps, no step would be common to all.
    """

    def __init__(self, first: int, orders: Page) -> None:
        """Use `first` steps until another interval is announced.

        orders: the page with the supervisor's announcements.
        """
        self._current = first
        self._orders = orders

    def at(self, step: int) -> int:
        """Return the interval in force at `step`. Ask for one step after the other."""
        every, begin = self._orders.announced_interval
        if every and self._current and NONE != begin <= step:
            self._current = every
        return self._current

    def changes_after(self, step: int) -> int | None:
        """Return the step after `step` from which another interval holds; None where no change is announced."""
        every, begin = self._orders.announced_interval
        return begin if every and begin > step else None


def wanted(stall: float, step: float) -> int:
    """Return the fewest steps between snapshots for which snapshots take at most MEMORY_SHARE of the time.

    Args:
        stall: seconds that one snapshot costs.
        step: seconds that one step takes.
    """
    if stall <= 0.0:
        return 1
    return max(1, min(MOST, math.ceil(stall / (MEMORY_SHARE * step)))) if step > 0.0 else MOST

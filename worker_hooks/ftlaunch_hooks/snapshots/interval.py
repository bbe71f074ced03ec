"""How many steps lie between snapshots: as many as were asked for, or as few as keep their cost small."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.protocol import MEMORY_SHARE

MOST = 1_000_000  # steps between snapshots, however much they cost
_SAMPLES = 8
_FEW = 3  # snapshots; the first ones warm up what the later ones use, so the cheapest of so few counts
_GROWTH = 8  # times the interval before: a single measurement that is wrong by far is soon outweighed by the next
_SLACK = 0.2  # part by which another interval must differ: none that is settled moves with every snapshot


class AdaptiveInterval:
    """The interval between snapshots. The node's first rank measures it, all its ranks follow."""

    def __init__(self, interval: int, auto: bool) -> None:
        """interval: steps, 0 is never. auto: begin with `interval`, and adapt it."""
        self.interval, self._auto = interval, auto
        self._stalls: deque[float] = deque(maxlen=_SAMPLES)
        self._steps: deque[float] = deque(maxlen=4 * _SAMPLES)
        self._stall = 0.0

    def fix(self, interval: int) -> None:
        """Keep to `interval` steps from now on."""
        self.interval, self._auto = interval, False

    def stepped(self, nanoseconds: int) -> None:
        """A step is over that took so long: no snapshot, and no time spent on one."""
        if self._auto:
            self._steps.append(nanoseconds / 1e9)

    def note(self, seconds: float, stalled: float, once: float, taken: bool) -> None:
        """A step is over: it took `seconds`, of which snapshots cost `stalled`; it ended with a snapshot if `taken`.

        once: the part of `stalled` that the next snapshots will not cost again.
        """
        if not self._auto:
            return
        self._steps.append(max(seconds - stalled, 0.0))
        self._stall += stalled - once
        if not taken:
            return
        self._stalls.append(self._stall)
        self._stall = 0.0
        typical = min(self._stalls) if len(self._stalls) <= _FEW else median(self._stalls)
        least = min(wanted(typical, median(self._steps)), _GROWTH * self.interval)
        if abs(least - self.interval) > _SLACK * self.interval:
            self.interval = least


class AnnouncedInterval:
    """The interval of a job on several nodes: the supervisor announces it, so that all nodes have the same steps.

    Of snapshots at other steps on each node no step would be common to all.
    """

    def __init__(self, first: int, orders: Page) -> None:
        """first: holds until another is announced. orders: see Coordinator."""
        self._holds, self._orders = first, orders

    def at(self, step: int) -> int:
        """The interval that holds at `step`; to be asked step after step."""
        every, begin = self._orders.announced_interval
        if every and self._holds and NONE != begin <= step:
            self._holds = every
        return self._holds

    def changes_after(self, step: int) -> int | None:
        """The step after `step` from which another interval holds, where one is announced."""
        every, begin = self._orders.announced_interval
        return begin if every and begin > step else None


def wanted(stall: float, step: float) -> int:
    """The fewest steps of `step` seconds between snapshots of `stall` seconds that take MEMORY_SHARE at most."""
    if stall <= 0.0:
        return 1
    return max(1, min(MOST, math.ceil(stall / (MEMORY_SHARE * step)))) if step > 0.0 else MOST

"""Finds losses that are not finite, and spikes. Every rank judges every step, and writes bad losses into its page.

A spike is a loss that lies above the median of the last 100 losses by so many deviations, and above nine in ten of
these losses. Deviations are scaled median absolute deviations, which one outlier does not move (Iglewicz and Hoaglin,
"How to detect and handle outliers", 1993). The OLMo 2 report's spike score counts from seven. Standard library only.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

from ftlaunch_contract.pages.loss_record import CALM, Bad, LossFault, SpikeRule, tell
from ftlaunch_contract.pages.page import Page

WINDOW, _ENOUGH = 100, 20  # losses that a spike is measured against: at most, and at least
_SCALE = 1.4826  # of a median absolute deviation to a standard deviation, where the noise is Gaussian
_LEAST_RISE = 0.01  # of the median: a smaller rise is no spike, however little the losses differ


class Window:
    """The last losses, and the limit above which the next loss is a spike."""

    def __init__(self, deviations: float) -> None:
        self._deviations = deviations
        self._losses: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, loss: float) -> float:
        """Add a loss; returns the limit that it exceeds, or infinity."""
        limit = self._limit(loss)
        self._losses.append(loss)
        insort(self._sorted, loss)
        if len(self._losses) > WINDOW:
            del self._sorted[bisect_left(self._sorted, self._losses.popleft())]
        return limit if loss > limit else math.inf

    def _limit(self, loss: float) -> float:
        known, count = self._sorted, len(self._sorted)
        if count < _ENOUGH or loss <= known[count * 9 // 10]:
            return math.inf
        median = known[count // 2]
        deviation = sorted(abs(other - median) for other in known)[count // 2]
        return median + max(self._deviations * _SCALE * deviation, _LEAST_RISE * abs(median))


class _Episodes:
    """Bad steps of one kind: so many in a row begin an episode, CALM good ones end it."""

    def __init__(self, page: Page, kind: LossFault, row: int) -> None:
        self._page, self._kind, self._needed = page, kind, row
        self._row = self._calm = self._count = 0
        self._first: Bad | None = None
        self.on: Bad | None = None

    def good(self) -> None:
        """A good step."""
        self._row = 0
        self._calm += 1
        if self._calm >= CALM:
            self.on = None

    def bad(self, step: int, value: float, span: tuple[int, int], limit: float) -> None:
        """A bad step. span: samples consumed before and after it."""
        self._calm = 0
        self._row += 1
        if self._row == 1 or self._first is None:
            self._first = Bad(self._kind, step, value, *span, limit, self._count + 1, step)
        if self._row >= self._needed and self.on is None:
            self.on = self._first._replace(end=span[1])
            self._count += 1
            tell(self._page, self.on)


class LossWatch:
    """Judges a rank's losses."""

    def __init__(self, page: Page, rule: SpikeRule | None) -> None:
        """rule: what a spike is; None: spikes are not looked for."""
        self.noted: float | None = None  # the loss of the step being made
        self._nan = _Episodes(page, LossFault.NAN, 1)
        self._spike = _Episodes(page, LossFault.SPIKE, rule.steps if rule else 1)
        self._window = Window(rule.deviations) if rule else None

    def note(self, loss: float) -> None:
        """Note a loss of the step being made. Of several the last one counts, but one that is not finite stays."""
        if self.noted is None or math.isfinite(self.noted):
            self.noted = loss

    def judge(self, step: int, begin: int, end: int) -> None:
        """The step is complete. begin, end: samples consumed over all ranks before and after it, or NONE."""
        loss, self.noted = self.noted, None
        if loss is None:
            return
        if not math.isfinite(loss):
            self._nan.bad(step, loss, (begin, end), math.inf)
            return
        self._nan.good()
        if self._window is not None:
            limit = self._window.add(loss)
            if loss > limit:
                self._spike.bad(step, loss, (begin, end), limit)
            else:
                self._spike.good()

    @property
    def trouble(self) -> str:
        """Why a snapshot taken now is not to be trusted; empty where nothing speaks against it."""
        bad = self._nan.on or self._spike.on
        return "" if bad is None else f"the loss was {bad.value:g} at step {bad.step}"

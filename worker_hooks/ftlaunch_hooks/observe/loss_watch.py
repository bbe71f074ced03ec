"""Finds losses that are not finite, and spikes. Every rank judges every step, and writes bad losses into its page.

A spike is a loss above the median of the last 100 losses by the number of deviations that the job's rule names, and
above nine in ten of these losses. A deviation is the scaled median absolute deviation, which one outlier does not move
(Iglewicz and Hoaglin, "How to detect and handle outliers", 1993). The OLMo 2 report's spike score counts from seven
deviations.

The Job calls this module in the thread that trains. Standard library only.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

from ftlaunch_contract.pages.loss_record import CALM, Bad, LossFault, SpikeRule, write_losses
from ftlaunch_contract.pages.page import Page

WINDOW = 100
"""the largest number of losses that a spike is measured against"""
_LEAST_LOSSES = 20
"""the smallest number of losses that a spike is measured against"""
_SCALE = 1.4826
"""the standard deviation of Gaussian noise, in median absolute deviations"""
_LEAST_RISE = 0.01
"""the smallest rise of a spike, as a share of the median: losses may differ very little"""


class Window:
    """The last losses, and the limit above which the next loss is a spike."""

    def __init__(self, deviations: float) -> None:
        """Begin without losses. deviations: the distance of a spike from the median."""
        self._deviations = deviations
        self._losses: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, loss: float) -> float:
        """Add a loss. Return the limit that the loss exceeds, or infinity where the loss is no spike."""
        limit = self._limit(loss)
        self._losses.append(loss)
        insort(self._sorted, loss)
        if len(self._losses) > WINDOW:
            del self._sorted[bisect_left(self._sorted, self._losses.popleft())]
        return limit if loss > limit else math.inf

    def _limit(self, loss: float) -> float:
        count = len(self._sorted)
        if count < _LEAST_LOSSES or loss <= self._sorted[count * 9 // 10]:
            return math.inf
        median = self._sorted[count // 2]
        deviation = sorted(abs(other - median) for other in self._sorted)[count // 2]
        return median + max(self._deviations * _SCALE * deviation, _LEAST_RISE * abs(median))


class _Episodes:
    """Counts bad steps of one kind. A row of bad steps begins an episode, and CALM good steps in a row end it."""

    def __init__(self, page: Page, kind: LossFault, row: int) -> None:
        """Begin without an episode. row: the number of bad steps in a row that begins one."""
        self._page = page
        self._kind = kind
        self._needed = row
        self._bad_in_row = 0
        self._good_in_row = 0
        self._episodes = 0
        self._first: Bad | None = None
        """the first bad step of the row"""
        self.current: Bad | None = None
        """the episode that has begun and not ended"""

    def record_good(self) -> None:
        """Count a good step."""
        self._bad_in_row = 0
        self._good_in_row += 1
        if self._good_in_row >= CALM:
            self.current = None

    def record_bad(self, step: int, *, value: float, begin: int, end: int, limit: float) -> None:
        """Count a bad step, and write into the page an episode that begins with it.

        Args:
            step: number of the step.
            value: the loss of the step.
            begin: samples consumed over all ranks before the step.
            end: samples consumed over all ranks after the step.
            limit: the limit that the loss exceeded.
        """
        self._good_in_row = 0
        self._bad_in_row += 1
        if self._bad_in_row == 1 or self._first is None:
            self._first = Bad(
                kind=self._kind, step=step, value=value, begin=begin, end=end, limit=limit,
                episodes=self._episodes + 1, newest=step,
            )  # fmt: skip
        if self._bad_in_row >= self._needed and self.current is None:
            self.current = self._first._replace(end=end)
            self._episodes += 1
            write_losses(self._page, self.current)


class LossWatch:
    """Judges a rank's losses."""

    def __init__(self, page: Page, rule: SpikeRule | None) -> None:
        """Begin without losses. rule: what counts as a spike; with None only losses that are not finite are bad."""
        self.noted: float | None = None
        """the loss of the step under way"""
        self._nan = _Episodes(page, LossFault.NAN, 1)
        self._spike = _Episodes(page, LossFault.SPIKE, rule.steps if rule else 1)
        self._window = Window(rule.deviations) if rule else None

    def note(self, loss: float) -> None:
        """Note a loss of the step under way. The last loss of a step counts, except that the first NaN or inf stays."""
        if self.noted is None or math.isfinite(self.noted):
            self.noted = loss

    def judge(self, step: int, begin: int, end: int) -> None:
        """Judge the loss that was noted of a complete step.

        Args:
            step: number of the step.
            begin: samples consumed over all ranks before the step, or NONE.
            end: samples consumed over all ranks after the step, or NONE.
        """
        loss = self.noted
        self.noted = None
        if loss is None:
            return
        if not math.isfinite(loss):
            self._nan.record_bad(step, value=loss, begin=begin, end=end, limit=math.inf)
            return
        self._nan.record_good()
        if self._window is not None:
            limit = self._window.add(loss)
            if loss > limit:
                self._spike.record_bad(step, value=loss, begin=begin, end=end, limit=limit)
            else:
                self._spike.record_good()

    @property
    def trouble(self) -> str:
        """The reason not to trust a snapshot taken now; empty where there is none."""
        bad = self._nan.current or self._spike.current
        return "" if bad is None else f"the loss was {bad.value:g} at step {bad.step}"

"""Finds the ranks that the others wait for in every step. Pure; seconds.

A whole step takes all ranks equally long. Therefore the own part of a step is compared, in which a rank does not wait
for others (step_timer.py of the hooks), averaged over windows. A rank is slow if it is an outlier in three windows in a
row and costs a tenth of a step. An outlier is compared with the other ranks only: its own part exceeds 1.5 times their
median, and the median by three of their scaled median absolute deviations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ftlaunch.common.formatting import duration
from ftlaunch.common.outliers import median_of_others, outliers

WINDOW_STEPS = 10  # least number of steps of a window, by every rank
WINDOW_SECONDS = 1.0  # least length of a window
WINDOWS = 3  # windows in a row after which an outlier is slow
WINDOWS_WELL = 10  # windows in a row after which a slow rank is well: a rank that comes and goes is not news each time
LEAST_SHARE = 0.1  # share of a step that a slow rank costs the others, at least

Own = tuple[int, float]
"""Number of measured steps, and the seconds of them in which the rank did not wait for others."""


@dataclass(frozen=True)
class StragglerNews:
    """A rank has become slow, or is no longer slow."""

    rank: int
    slow: bool
    own: float  # seconds; mean own part of a step of the rank
    others: float  # seconds; median of the other ranks' own parts
    step: float  # seconds; mean length of a step

    @property
    def sentence(self) -> str:
        """The news in one sentence for people."""
        took = f"its own part of a step takes {duration(self.own)}, the others' {duration(self.others)}"
        if self.slow:
            return f"rank {self.rank} is slow: {took} (median); they wait for it, a step takes {duration(self.step)}"
        return f"rank {self.rank} is no longer slow: {took} (median)"


class Stragglers:
    """Watches the ranks of one attempt."""

    def __init__(self) -> None:
        self.slow: dict[int, StragglerNews] = {}
        """the slow ranks, by rank"""
        self._begin: tuple[float, Mapping[int, Own]] | None = None  # time and measurements at the window's beginning
        self._rows: dict[int, int] = {}  # rank -> windows in a row in which it was an outlier, or below 0 was none

    def observe(self, own: Mapping[int, Own], now: float) -> list[StragglerNews]:
        """Return what is new if a window is over; else nothing.

        Args:
            own: measurements of the living ranks since the attempt began, by rank.
            now: monotonic seconds.
        """
        if self._begin is None:
            self._begin = now, own
            return []
        since, before = self._begin
        made = {rank: steps - before.get(rank, (0, 0.0))[0] for rank, (steps, _) in own.items()}  # steps of the window
        if now - since < WINDOW_SECONDS or min(made.values(), default=0) < WINDOW_STEPS:
            return []
        self._begin = now, own
        means = {rank: (own[rank][1] - before.get(rank, (0, 0.0))[1]) / made[rank] for rank in own}
        return self._judge(means, (now - since) / max(made.values()))

    def _judge(self, means: Mapping[int, float], step: float) -> list[StragglerNews]:
        """Judge a window.

        Args:
            means: seconds; mean own part of a step, by rank.
            step: seconds; mean length of a step.
        """
        found = outliers(means)
        ordered = sorted(means.values())
        news = []
        for rank, mean in means.items():
            others = median_of_others(mean, ordered)
            slow = rank in found and mean - others > LEAST_SHARE * step
            row = self._rows.get(rank, 0)
            self._rows[rank] = max(row, 0) + 1 if slow else min(row, 0) - 1
            change = StragglerNews(rank=rank, slow=slow, own=mean, others=others, step=step)
            if self._rows[rank] >= WINDOWS and rank not in self.slow:
                self.slow[rank] = change
                news.append(change)
            elif self._rows[rank] <= -WINDOWS_WELL and rank in self.slow:
                del self.slow[rank]
                news.append(change)
        return news

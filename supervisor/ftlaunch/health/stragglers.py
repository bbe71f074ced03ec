"""Which ranks the others wait for, step after step. Pure; seconds.

Compared is the part of a step that is a rank's own (step_timer.py of the hooks): the whole step takes all ranks equally
long. Own parts are averaged over windows; a rank is slow when it is an outlier against the others alone (1.5 times
their median, and three of their scaled median absolute deviations) that costs a tenth of a step, in three windows in a
row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ftlaunch.common.formatting import duration
from ftlaunch.common.outliers import median_of_others, outliers

WINDOW_STEPS, WINDOW_SECONDS = 10, 1.0  # the least that makes a window
WINDOWS = 3  # in a row: to be slow
WINDOWS_WELL = 10  # in a row: to be so no longer (one that comes and goes is not news each time)
LEAST_SHARE = 0.1  # of a step

Own = tuple[int, float]  # steps measured so far, seconds of them that were the rank's own


@dataclass(frozen=True)
class StragglerNews:
    """A rank that has become slow, or is no more."""

    rank: int
    slow: bool
    own: float  # seconds of a step
    others: float  # the same of the others, their median
    step: float  # seconds

    @property
    def sentence(self) -> str:
        """For people."""
        took = f"its own part of a step takes {duration(self.own)}, the others' {duration(self.others)}"
        if self.slow:
            return f"rank {self.rank} is slow: {took} (median); they wait for it, a step takes {duration(self.step)}"
        return f"rank {self.rank} is no longer slow: {took} (median)"


class Stragglers:
    """Watches the ranks of one attempt."""

    def __init__(self) -> None:
        self.slow: dict[int, StragglerNews] = {}
        self._begin: tuple[float, Mapping[int, Own]] | None = None
        self._rows: dict[int, int] = {}  # rank -> windows in a row in which it was slow, or (below 0) was not

    def look(self, own: Mapping[int, Own], now: float) -> list[StragglerNews]:
        """What is new. own: of all ranks, since the attempt began."""
        if self._begin is None:
            self._begin = now, own
            return []
        since, before = self._begin
        made = {rank: steps - before.get(rank, (0, 0.0))[0] for rank, (steps, _) in own.items()}
        if now - since < WINDOW_SECONDS or min(made.values(), default=0) < WINDOW_STEPS:
            return []
        self._begin = now, own
        means = {rank: (own[rank][1] - before.get(rank, (0, 0.0))[1]) / made[rank] for rank in own}
        return self._judge(means, (now - since) / max(made.values()))

    def _judge(self, means: Mapping[int, float], step: float) -> list[StragglerNews]:
        found, news, ordered = outliers(means), [], sorted(means.values())
        for rank, mean in means.items():
            others = median_of_others(mean, ordered)
            slow = rank in found and mean - others > LEAST_SHARE * step
            row = self._rows.get(rank, 0)
            self._rows[rank] = max(row, 0) + 1 if slow else min(row, 0) - 1
            told = StragglerNews(rank, slow, mean, others, step)
            if self._rows[rank] >= WINDOWS and rank not in self.slow:
                self.slow[rank] = told
                news.append(told)
            elif self._rows[rank] <= -WINDOWS_WELL and rank in self.slow:
                del self.slow[rank]
                news.append(told)
        return news

"""Lists of bounded length: when a list is full, neighbours are merged, and the merged are counted. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from ftlaunch.history.story import CLASSES

MOST_SPANS = 8000
MOST_BARS = 2000
MOST_POINTS = 480


class Spans:
    """The exact sequence of classes of time. Beyond `MOST_SPANS` spans there is none, and the page draws columns."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, float, float]] | None = []

    def copied(self) -> Spans:
        """Return an independent copy."""
        other = Spans()
        other._rows = None if self._rows is None else self._rows.copy()
        return other

    def add(self, name: str, begin: float, end: float) -> None:
        """Add time of a class after all that was added before."""
        if self._rows is None:
            return
        number = CLASSES.index(name)
        if self._rows and self._rows[-1][0] == number and self._rows[-1][2] == begin:
            begin = self._rows.pop()[1]
        self._rows.append((number, begin, end))
        if len(self._rows) > MOST_SPANS:
            self._rows = None

    def to_json(self, zero: float) -> list[list[float]] | None:
        """Return class, begin and end of each span, in seconds after `zero`; None if there were too many."""
        if self._rows is None:
            return None
        return [[number, round(begin - zero, 3), round(end - zero, 3)] for number, begin, end in self._rows]


class Bar(NamedTuple):
    """A stretch of time, or several merged stretches. Times are seconds since the epoch."""

    begin: float
    end: float
    merged: int
    """number of merged stretches"""
    first: int
    """number, of an attempt or a step, of the first stretch"""
    last: int
    """number of the last stretch"""
    rank: int
    """importance; the greatest of the merged stretches"""
    text: str
    """text of the most important stretch"""


class Bars:
    """Stretches of time in their order: attempts or checkpoints."""

    def __init__(self) -> None:
        self._bars: list[Bar] = []

    def copied(self) -> Bars:
        """Return an independent copy."""
        other = Bars()
        other._bars = self._bars.copy()
        return other

    def add(self, begin: float, end: float, number: int, rank: int = 0, text: str = "") -> None:
        """Add a stretch after all that were added before. rank: importance."""
        bar = Bar(begin=begin, end=end, merged=1, first=number, last=number, rank=rank, text=text)
        self._bars.append(bar)
        if len(self._bars) > MOST_BARS:
            self._bars = [_merged(self._bars[n : n + 2]) for n in range(0, len(self._bars), 2)]

    def to_json(self, zero: float) -> list[list[Any]]:
        """Return begin, end (seconds after `zero`), count, first, last, rank and text of each bar."""
        return [
            [round(bar.begin - zero, 3), round(bar.end - zero, 3), bar.merged, bar.first, bar.last, bar.rank, bar.text]
            for bar in self._bars
        ]


def _merged(bars: list[Bar]) -> Bar:
    most = max(bars, key=lambda bar: bar.rank)
    return Bar(
        begin=bars[0].begin,
        end=bars[-1].end,
        merged=sum(bar.merged for bar in bars),
        first=bars[0].first,
        last=bars[-1].last,
        rank=most.rank,
        text=most.text,
    )


class Line:
    """Values over time. Merged points keep their lowest and highest value, so that no spike is lost."""

    def __init__(self) -> None:
        self._points: list[tuple[float, int, float, float]] = []
        self._each = 1  # values of a full point
        self._open = 0  # values of the newest point, which is not full yet
        # Begin, last step, lowest and highest value of the newest point.
        self._at = 0.0
        self._step = 0
        self._low = 0.0
        self._high = 0.0

    def add(self, at: float, step: int, value: float) -> None:
        """Add a value after all that were added before. at: seconds since the epoch."""
        if not self._open:
            self._at = at
            self._low = value
            self._high = value
        elif value < self._low:
            self._low = value
        elif value > self._high:
            self._high = value
        self._step = step
        self._open += 1
        if self._open == self._each:
            self._points.append((self._at, step, self._low, self._high))
            self._open = 0
            if len(self._points) >= MOST_POINTS:
                self._merge()

    def _merge(self) -> None:
        pairs = [self._points[n : n + 2] for n in range(0, len(self._points), 2)]
        self._points = [(pair[0][0], pair[-1][1], min(p[2] for p in pair), max(p[3] for p in pair)) for pair in pairs]
        self._each *= 2

    def to_json(self, zero: float) -> list[list[float]]:
        """Return seconds after `zero`, step, lowest and highest value of each point."""
        newest = [(self._at, self._step, self._low, self._high)] if self._open else []
        points = [*self._points, *newest]
        return [[round(at - zero, 1), step, _short(low), _short(high)] for at, step, low, high in points]


def _short(value: float) -> float:
    return float(f"{value:.6g}")

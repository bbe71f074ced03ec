"""Lists that stay short however much is put into them: neighbours are merged, and what is merged is counted. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from ftlaunch.history.story import CLASSES

MOST_SPANS, MOST_BARS, MOST_POINTS = 8000, 2000, 480


class Spans:
    """Which class of time followed which, exactly; beyond so many of them the columns of time must do."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, float, float]] | None = []

    def copied(self) -> Spans:
        """The same, which change no more when these do."""
        other = Spans()
        other._rows = None if self._rows is None else self._rows.copy()
        return other

    def add(self, name: str, begin: float, end: float) -> None:
        """Time of a class, after what was added before."""
        if self._rows is None:
            return
        number = CLASSES.index(name)
        if self._rows and self._rows[-1][0] == number and self._rows[-1][2] == begin:
            begin = self._rows.pop()[1]
        self._rows.append((number, begin, end))
        if len(self._rows) > MOST_SPANS:
            self._rows = None

    def told(self, zero: float) -> list[list[float]] | None:
        """Class, begin and end of each, seconds after `zero`; None: there were too many."""
        if self._rows is None:
            return None
        return [[number, round(begin - zero, 3), round(end - zero, 3)] for number, begin, end in self._rows]


class Bar(NamedTuple):
    """A stretch of time, or of several that were merged."""

    begin: float
    end: float
    merged: int
    first: int
    """a number of the first of them: of the attempt, of the step"""
    last: int
    rank: int
    """how much it is worth a look; of several the greatest counts"""
    text: str
    """of the one that is worth most"""


class Bars:
    """Stretches of time that follow each other: attempts, checkpoints, notes."""

    def __init__(self) -> None:
        self._bars: list[Bar] = []

    def copied(self) -> Bars:
        """The same, which change no more when these do."""
        other = Bars()
        other._bars = self._bars.copy()
        return other

    def add(self, begin: float, end: float, number: int, rank: int = 0, text: str = "") -> None:
        """One more, after what was added before."""
        self._bars.append(Bar(begin, end, 1, number, number, rank, text))
        if len(self._bars) > MOST_BARS:
            self._bars = [_merged(self._bars[n : n + 2]) for n in range(0, len(self._bars), 2)]

    def told(self, zero: float) -> list[list[Any]]:
        """Begin, end (seconds after `zero`), count, first, last, rank and text of each."""
        return [
            [round(bar.begin - zero, 3), round(bar.end - zero, 3), bar.merged, bar.first, bar.last, bar.rank, bar.text]
            for bar in self._bars
        ]


def _merged(bars: list[Bar]) -> Bar:
    most = max(bars, key=lambda bar: bar.rank)
    return Bar(
        bars[0].begin, bars[-1].end, sum(bar.merged for bar in bars), bars[0].first, bars[-1].last, most.rank, most.text
    )


class Line:
    """Values over time: of points that are merged the lowest and the highest value stay, so that no spike is lost."""

    def __init__(self) -> None:
        self._points: list[tuple[float, int, float, float]] = []
        self._each = 1  # values in one point
        self._open = 0  # values in the point that is not full yet
        self._at, self._step, self._low, self._high = 0.0, 0, 0.0, 0.0  # of that point

    def add(self, at: float, step: int, value: float) -> None:
        """One more value."""
        if not self._open:
            self._at, self._low, self._high = at, value, value
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

    def told(self, zero: float) -> list[list[float]]:
        """Seconds after `zero`, step, lowest and highest value of each point."""
        newest = [(self._at, self._step, self._low, self._high)] if self._open else []
        points = [*self._points, *newest]
        return [[round(at - zero, 1), step, _short(low), _short(high)] for at, step, low, high in points]


def _short(value: float) -> float:
    return float(f"{value:.6g}")

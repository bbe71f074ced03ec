"""Time in columns: however long a job is, its time is told in a bounded number of columns. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftlaunch.history.story import CLASSES, LOST, USEFUL

MOST_COLUMNS = 1024
_NUMBER = {name: number for number, name in enumerate(CLASSES)}


class Columns:
    """Seconds of each class, incidents and lost steps, in columns of equal width. Full columns are merged by two."""

    def __init__(self, begin: float) -> None:
        """begin: seconds of the line of moments."""
        self.begin, self.width = begin, 1.0
        self.seconds: list[list[float]] = []
        self.incidents: list[int] = []
        self._lost: list[int] = []  # steps that had to be made again, where the job resumed

    def copied(self) -> Columns:
        """The same columns, which change no more when these do."""
        other = Columns(self.begin)
        other.width, other.seconds = self.width, [row.copy() for row in self.seconds]
        other.incidents, other._lost = self.incidents.copy(), self._lost.copy()
        return other

    def spend(self, name: str, begin: float, end: float) -> None:
        """A stretch of time was of a class."""
        number, at = _NUMBER[name], begin
        last = self._column(end)
        for column in range(self._column(begin), last + 1):
            until = min(end, self.begin + (column + 1) * self.width) if column < last else end
            self.seconds[column][number] += max(until - at, 0.0)
            at = max(until, at)

    def incident(self, at: float) -> None:
        """An incident happened."""
        column = self._column(at)
        self.incidents[column] += 1

    def lose(self, at: float, steps: int) -> None:
        """The job resumed at that time so many steps before the newest one it had made."""
        column = self._column(at)
        self._lost[column] += steps

    def _column(self, at: float) -> int:
        """The column of a moment; makes it where there is none yet."""
        while at - self.begin >= MOST_COLUMNS * self.width:
            self._merge()
        column = max(int((at - self.begin) / self.width), 0)
        for _ in range(column + 1 - len(self.seconds)):
            self.seconds.append([0.0] * len(CLASSES))
            self.incidents.append(0)
            self._lost.append(0)
        return column

    def _merge(self) -> None:
        self.width *= 2
        rows = self.seconds
        pairs = range(0, len(rows), 2)
        self.seconds = [[sum(cell) for cell in zip(*rows[n : n + 2], strict=True)] for n in pairs]
        self.incidents = [sum(self.incidents[n : n + 2]) for n in pairs]
        self._lost = [sum(self._lost[n : n + 2]) for n in pairs]

    def told(self, ledger: Mapping[str, float], step_seconds: float | None) -> dict[str, Any]:
        """JSON-ready. ledger: the seconds of each class over the whole time: the columns add up to them.

        Lost steps were made before the job resumed: their time is taken from the useful time that ends there.
        """
        rows = [list(row) for row in self.seconds]
        useful, lost = _NUMBER[USEFUL], _NUMBER[LOST]
        for column, steps in enumerate(self._lost):
            left = steps * (step_seconds or 0.0)
            for row in reversed(rows[: column + 1]):
                if left <= 0:
                    break
                moved = min(row[useful], left)
                row[useful] -= moved
                row[lost] += moved
                left -= moved
        left = ledger[LOST] - sum(row[lost] for row in rows)
        for row in rows:  # what the time before did not have
            moved = min(row[useful], max(left, 0.0))
            row[useful] -= moved
            row[lost] += moved
            left -= moved
        shown = [[round(cell, 3) for cell in row] for row in rows]
        return {"width": self.width, "seconds": shown, "incidents": self.incidents}

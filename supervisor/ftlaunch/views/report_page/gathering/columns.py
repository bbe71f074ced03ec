"""Divides a job's time into a bounded number of columns, however long the job runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftlaunch.history.story import CLASSES, LOST, USEFUL

MOST_COLUMNS = 1024
_NUMBER = {name: number for number, name in enumerate(CLASSES)}


class Columns:
    """Seconds by class, incidents and lost steps in columns of equal width.

    When all columns are in use, each two neighbours are merged.
    """

    def __init__(self, begin: float) -> None:
        """Begin without columns. begin: time of the job's begin, in seconds since the epoch."""
        self.begin = begin
        self.width = 1.0  # seconds
        self.seconds: list[list[float]] = []
        self.incidents: list[int] = []
        self._lost: list[int] = []  # lost steps, in the column of the resume

    def copied(self) -> Columns:
        """Return an independent copy."""
        other = Columns(self.begin)
        other.width = self.width
        other.seconds = [row.copy() for row in self.seconds]
        other.incidents = self.incidents.copy()
        other._lost = self._lost.copy()
        return other

    def spend(self, name: str, begin: float, end: float) -> None:
        """Add the time from `begin` to `end` to the class `name`."""
        number = _NUMBER[name]
        at = begin
        last = self._column(end)
        for column in range(self._column(begin), last + 1):
            until = min(end, self.begin + (column + 1) * self.width) if column < last else end
            self.seconds[column][number] += max(until - at, 0.0)
            at = max(until, at)

    def incident(self, at: float) -> None:
        """Count an incident."""
        column = self._column(at)
        self.incidents[column] += 1

    def lose(self, at: float, steps: int) -> None:
        """Count steps that were lost when the job resumed at a time."""
        column = self._column(at)
        self._lost[column] += steps

    def _column(self, at: float) -> int:
        """Return the index of the column of a time, and make missing columns."""
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

    def to_json(self, ledger: Mapping[str, float], step_seconds: float | None) -> dict[str, Any]:
        """Return the columns, ready for JSON.

        The time of lost steps is taken from the useful time before the resume.

        Args:
            ledger: seconds by class over the whole time, to which the columns add up.
            step_seconds: mean length of a step; None if unknown.
        """
        rows = [list(row) for row in self.seconds]
        useful = _NUMBER[USEFUL]
        lost = _NUMBER[LOST]
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
        for row in rows:  # the rest, for which the useful time before the resumes did not suffice
            moved = min(row[useful], max(left, 0.0))
            row[useful] -= moved
            row[lost] += moved
            left -= moved
        shown = [[round(cell, 3) for cell in row] for row in rows]
        return {"width": self.width, "seconds": shown, "incidents": self.incidents}

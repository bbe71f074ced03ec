"""Gathers the lines of loss and step time over a job from the journal's `progress` events. Pure."""

from __future__ import annotations

from typing import Any

from ftlaunch.history.events import by_rank
from ftlaunch.history.timeline import Moment
from ftlaunch.views.report_page.gathering.lanes import Line

MOST_RANKS = 8
"""most ranks that `progress` names one by one; with more ranks it has the lowest, the median and the highest value"""
_ORDER = ("lowest", "median", "highest")
MOST_LINES = MOST_RANKS + len(_ORDER)


class StepLines:
    """Lines of losses and of step times, by rank, or for many ranks by order (lowest, median, highest)."""

    def __init__(self) -> None:
        self.newest: dict[str, list[tuple[int, float]]] = {"loss": [], "step_seconds": []}
        """pairs of rank and value of the newest event that has them"""
        self._lines: dict[str, dict[str | int, Line]] = {"loss": {}, "step_seconds": {}}
        self.cut = False
        """whether the journal names more ranks than there are lines"""

    def apply(self, moment: Moment) -> None:
        """Process the next `progress` event."""
        step = int(moment.fields.get("step") or 0)
        for name, lines in self._lines.items():
            pairs = by_rank(moment.fields.get(name))[:MOST_RANKS]
            if pairs:
                self.newest[name] = pairs
            ordered = bool(moment.fields.get("of"))
            for number, (rank, value) in enumerate(pairs):
                key = _ORDER[number] if ordered and number < len(_ORDER) else rank
                if (line := lines.get(key)) is None:
                    if len(lines) >= MOST_LINES:
                        self.cut = True
                        continue
                    line = lines[key] = Line()
                line.add(moment.wall, step, value)

    def to_json(self, zero: float) -> dict[str, Any]:
        """Return loss and step time, ready for JSON: the lines by name, and the newest values by rank."""
        return {
            name: {
                "lines": {
                    key if isinstance(key, str) else f"rank {key}": line.to_json(zero) for key, line in lines.items()
                },
                "newest": self.newest[name],
            }
            for name, lines in self._lines.items()
        }

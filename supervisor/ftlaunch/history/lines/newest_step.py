"""The newest step that a job is known to have completed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftlaunch.history.lines.numbers import is_number

_MADE = frozenset({"progress", "recovered", "checkpoint_committed"})
"""events after which all ranks have completed their `step`"""


class NewestStep:
    """Follows the newest completed step through the events of a run dir. A resume may lower the step."""

    EVENTS = _MADE | {"resumed", "job_started", "job_finished"}
    """names of the events that `hear` uses"""

    def __init__(self) -> None:
        """Start without a step."""
        self.step: int | None = None
        """newest completed step; None if the journal has none"""
        self._is_finished = False  # whether the job was done, so that the next run in this run dir is another job

    def hear(self, name: str, fields: Mapping[str, Any]) -> None:
        """Take in one event. Call with the events in their order.

        Args:
            name: name of the event.
            fields: fields of the event.
        """
        if name == "job_finished":
            self._is_finished = True
        elif name == "job_started":
            if self._is_finished:
                self.step = None
            self._is_finished = False
        elif (name in _MADE or name == "resumed") and is_number(step := fields.get("step")):
            before = -1 if self.step is None or name == "resumed" else self.step
            self.step = max(before, int(step))

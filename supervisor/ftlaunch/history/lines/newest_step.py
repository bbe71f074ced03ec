"""The newest step that a job is known to have completed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftlaunch.history.lines.numbers import is_number

_MADE = frozenset({"progress", "recovered", "checkpoint_committed"})
"""all ranks have completed their `step`"""


class NewestStep:
    """Takes the events of a run dir in their order. What a resume goes back behind counts no more."""

    EVENTS = _MADE | {"resumed", "job_started", "job_finished"}
    """those that it listens to"""

    def __init__(self) -> None:
        self.step: int | None = None
        """None: the journal tells of none"""
        self._over = False  # another run in this place is another job

    def hear(self, name: str, fields: Mapping[str, Any]) -> None:
        """Take one event in."""
        if name == "job_finished":
            self._over = True
        elif name == "job_started":
            self.step, self._over = None if self._over else self.step, False
        elif (name in _MADE or name == "resumed") and is_number(step := fields.get("step")):
            before = -1 if self.step is None or name == "resumed" else self.step
            self.step = max(before, int(step))

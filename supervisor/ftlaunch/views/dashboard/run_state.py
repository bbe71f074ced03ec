"""Derives the state of a job from its newest events, and from whether its supervisor lives on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftlaunch.history.events import NewestStep
from ftlaunch.history.report_view import ending
from ftlaunch.history.runs import DamagedJournal, Run

_MAX_STAMP = 50  # characters of a time that the page shows
_STATES = {"job_finished": "done", "job_stopped": "stopped", "job_failed": "failed"}


class RunState:
    """The state of the job of one run dir, built from its events in their order."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._start: Mapping[str, Any] | None = None
        self._end: Mapping[str, Any] | None = None
        self._stopping = ""  # who asked the job to stop; empty if nobody did
        self._newest_step = NewestStep()
        self.newest: str | None = None
        """time of the newest event, as the journal writes times; None if unknown"""

    def apply(self, event: Mapping[str, Any]) -> None:
        """Process the next event."""
        name = event["event"]
        stamp = event.get("t")
        self.newest = stamp if isinstance(stamp, str) and len(stamp) < _MAX_STAMP else None
        self._newest_step.apply(name, event)
        if name == "job_started":
            self._start = event
            self._end = None
            self._stopping = ""
        elif name in _STATES:
            self._end = event
        elif name == "stop_requested":
            self._stopping = str(event.get("by"))

    @property
    def step(self) -> int | None:
        """The newest step that is known to be complete; None if the journal names none."""
        return self._newest_step.step

    @property
    def ends_of_run(self) -> list[Mapping[str, Any]]:
        """The events that began and ended the newest run of the supervisor, as far as they exist."""
        return [event for event in (self._start, self._end) if event is not None]

    def describe(self) -> tuple[str, str]:
        """Return the state as a word and as a sentence. Checks whether a supervisor on this machine lives."""
        if self._end is not None:
            return _STATES[str(self._end["event"])], ending(self._end)
        if self._start is None:
            return "unknown", "the journal does not say that a job was started"
        run = Run(self._run_dir, [self._start])
        try:
            elsewhere = run.elsewhere
            alive = run.alive
        except DamagedJournal:
            return "unknown", "the journal does not say which process the supervisor is"
        if elsewhere:
            return (
                "running",
                f"started on {elsewhere}: whether it lives cannot be seen from here",
            )
        if not alive:
            return "killed", ending(None)
        return ("stopping", f"told to stop: {self._stopping}") if self._stopping else ("running", "")

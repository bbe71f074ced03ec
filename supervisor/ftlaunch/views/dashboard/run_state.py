"""The state of a job, from its newest events and from whether its supervisor lives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftlaunch.history.lines.newest_step import NewestStep
from ftlaunch.history.report_view import ending
from ftlaunch.history.runs import DamagedJournal, Run

_LONGEST_STAMP = 50
_STATES = {"job_finished": "done", "job_stopped": "stopped", "job_failed": "failed"}


class RunState:
    """Takes the events of one run dir."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._start: Mapping[str, Any] | None = None
        self._end: Mapping[str, Any] | None = None
        self._stopping = ""  # who asked for it
        self._newest_step = NewestStep()
        self.newest: str | None = None
        """when it was written last: the journal's stamp"""

    def hear(self, event: Mapping[str, Any]) -> None:
        """Take one event in."""
        name, stamp = event["event"], event.get("t")
        self.newest = stamp if isinstance(stamp, str) and len(stamp) < _LONGEST_STAMP else None
        self._newest_step.hear(name, event)
        if name == "job_started":
            self._start, self._end, self._stopping = event, None, ""
        elif name in _STATES:
            self._end = event
        elif name == "stop_requested":
            self._stopping = str(event.get("by"))

    @property
    def step(self) -> int | None:
        """The newest step that is known to be complete; None: the journal tells of none."""
        return self._newest_step.step

    @property
    def ends_of_run(self) -> list[Mapping[str, Any]]:
        """The events that began and ended the newest run of the supervisor; those that are there."""
        return [event for event in (self._start, self._end) if event is not None]

    def told(self) -> tuple[str, str]:
        """The state in a word, and a sentence. Looks whether the supervisor lives, where it is on this machine."""
        if self._end is not None:
            return _STATES[str(self._end["event"])], ending(self._end)
        if self._start is None:
            return "unknown", "the journal does not say that a job was started"
        run = Run(self._run_dir, [self._start])
        try:
            elsewhere, alive = run.elsewhere, run.alive
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

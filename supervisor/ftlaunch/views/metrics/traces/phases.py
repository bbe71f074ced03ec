"""Finds the phases of each restart in a journal, for traces and the report page. Pure.

The phases follow each other without gaps: detecting, from the last completed step to the incident; killing, until the
last rank is gone; planning, until ranks are started, the backoff included; spawning, until all ranks run; loading,
until all ranks have restored their state; first step, until a new step is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ftlaunch.history.events import is_number
from ftlaunch.history.timeline import moments

Line = Mapping[str, Any]
_ENDS = ("job_finished", "job_stopped", "job_failed")


class RestartPhase(NamedTuple):
    """A phase of a restart; times are seconds since the epoch."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True)
class RestartTrace:
    """An incident and the restart that followed."""

    job_id: str
    host: str
    phases: Sequence[RestartPhase]
    notes: Mapping[str, Any]
    """attributes such as kind, rank and verdict; never text that the job has written"""
    error: str
    """why there was no new step; empty if there was one"""


class RestartPhases:
    """Finds restarts in the lines of one journal, in their order."""

    def __init__(self) -> None:
        self._job_id = self._host = ""
        self._ahead = 0.0  # seconds by which the writing machine's wall clock is ahead of its monotonic clock
        self._open: _Open | None = None

    def apply(self, line: Line) -> list[RestartTrace]:
        """Process the next line. Return the restart that the line completes, in a list of at most one."""
        handler = self._handlers.get(str(line.get("event")))
        if handler is None or not is_number(line.get("mono")):
            return []
        if line["event"] == "job_started":
            if not (found := moments([line])):
                return []
            self._ahead = found[0].wall - float(line["mono"])
        return handler(self, line, self._ahead + float(line["mono"]))

    def _close(self, error: str) -> list[RestartTrace]:
        """Finish the restart under way, if there is one."""
        opened = self._open
        self._open = None
        if opened is None:
            return []
        trace = RestartTrace(
            job_id=self._job_id, host=self._host, phases=opened.phases, notes=opened.notes, error=error
        )
        return [trace]

    # --- what lines say ---------------------------------------------------------------------------------------

    def _on_job_started(self, line: Line, at: float) -> list[RestartTrace]:
        self._job_id = str(line.get("job_id"))
        self._host = str(line.get("host"))
        self._open = None  # the supervisor before was killed, so the end of that restart is unknown
        return []

    def _on_incident(self, line: Line, at: float) -> list[RestartTrace]:
        closed = self._close("another incident came before a new step")
        names = ("kind", "rank", "step", "verdict", "delay", "restarts_left")
        notes = {name: line[name] for name in names if line.get(name) is not None}
        self._open = _Open({**notes, "attempt": line.get("attempt")}, at - float(line.get("since_progress") or 0.0))
        self._open.end("detecting", at)
        return closed

    def _on_rank_exited(self, line: Line, at: float) -> list[RestartTrace]:
        if self._open is not None and not self._open.spawned:
            self._open.last_exit = at
        return []

    def _on_attempt_started(self, line: Line, at: float) -> list[RestartTrace]:
        if (opened := self._open) is not None:
            opened.end("killing", opened.last_exit)
            opened.end("planning", at - float(line.get("seconds") or 0.0))
            opened.end("spawning", at)
            opened.spawned = True
        return []

    def _on_resumed(self, line: Line, at: float) -> list[RestartTrace]:
        if self._open is not None:
            self._open.end("loading", at)
            names = ("source", "steps_lost")
            self._open.notes |= {name: line[name] for name in names if line.get(name) is not None}
        return []

    def _on_recovered(self, line: Line, at: float) -> list[RestartTrace]:
        if self._open is not None:
            self._open.end("first step", at)
        return self._close("")

    def _on_end(self, line: Line, at: float) -> list[RestartTrace]:
        if (opened := self._open) is not None and not opened.spawned:
            opened.end("killing", opened.last_exit)
        return self._close({"job_failed": "the job was given up"}.get(line["event"], "the job ended before a new step"))

    @classmethod
    def has_handler(cls, event: str) -> bool:
        """Return whether lines of an event matter here."""
        return event in cls._handlers

    _handlers: Mapping[str, Callable[[RestartPhases, Line, float], list[RestartTrace]]] = {
        "job_started": _on_job_started,
        "incident": _on_incident,
        "rank_exited": _on_rank_exited,
        "attempt_started": _on_attempt_started,
        "resumed": _on_resumed,
        "recovered": _on_recovered,
        **dict.fromkeys(_ENDS, _on_end),
    }


class _Open:
    """A restart under way."""

    def __init__(self, notes: dict[str, Any], began: float) -> None:
        self.notes = notes
        self.phases: list[RestartPhase] = []
        self.last_exit = self._since = began
        self.spawned = False

    def end(self, name: str, at: float) -> None:
        """End the phase `name` at a time, and begin the next phase."""
        at = max(at, self._since)
        self.phases.append(RestartPhase(name, self._since, at))
        self._since = at

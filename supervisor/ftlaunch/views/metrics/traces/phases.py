"""From a journal to the phases of each restart: what a trace shows. Pure.

detecting: from the last completed step until the incident; killing: until the last rank is gone; planning: until ranks
are started, the wait before a restart included; spawning: until all of them run; loading: until all have their state;
first step: until a new step is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ftlaunch.history.lines.numbers import is_number
from ftlaunch.history.timeline import moments

Line = Mapping[str, Any]
_ENDS = ("job_finished", "job_stopped", "job_failed")


class RestartPhase(NamedTuple):
    """A part of a restart; times are seconds of the epoch."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True)
class RestartTrace:
    """One incident and what followed."""

    job_id: str
    host: str
    phases: Sequence[RestartPhase]
    notes: Mapping[str, Any]
    """kind, rank, verdict, ...: nothing that the job has written"""
    error: str
    """why there was no new step; empty: there was one"""


class RestartPhases:
    """Walks along a journal, line by line."""

    def __init__(self) -> None:
        self._job_id = self._host = ""
        self._ahead = 0.0  # of the clock of the epoch before the monotonic one, of the machine that writes
        self._open: _Open | None = None

    def hear(self, line: Line) -> list[RestartTrace]:
        """Take a line; returns the restart that it completes, if it does."""
        handler = self._hears.get(str(line.get("event")))
        if handler is None or not is_number(line.get("mono")):
            return []
        if line["event"] == "job_started":
            if not (found := moments([line])):
                return []
            self._ahead = found[0].wall - float(line["mono"])
        return handler(self, line, self._ahead + float(line["mono"]))

    def _close(self, error: str) -> list[RestartTrace]:
        opened, self._open = self._open, None
        if opened is None:
            return []
        return [RestartTrace(self._job_id, self._host, opened.phases, opened.notes, error)]

    # --- what lines say ---------------------------------------------------------------------------------------

    def _on_job_started(self, line: Line, at: float) -> list[RestartTrace]:
        self._job_id, self._host = str(line.get("job_id")), str(line.get("host"))
        self._open = None  # the supervisor before was killed: it is not known what became of that restart
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
    def hears(cls, event: str) -> bool:
        """Whether a line of that event says something of phases."""
        return event in cls._hears

    _hears: Mapping[str, Callable[[RestartPhases, Line, float], list[RestartTrace]]] = {
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
        """A phase ends, and the next one begins."""
        at = max(at, self._since)
        self.phases.append(RestartPhase(name, self._since, at))
        self._since = at

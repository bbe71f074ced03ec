"""All jobs of a directory as rows: state, steps, goodput, the last incident."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ftlaunch.dashboard.growing_journal import GrowingJournal
from ftlaunch.dashboard.run_state import RunState
from ftlaunch.history import goodput
from ftlaunch.history.lines.numbers import sound
from ftlaunch.history.timeline import moments
from ftlaunch.report_page.words import SafeText

_OVER = ("done", "stopped", "failed")


class IndexRows:
    """Of one directory."""

    def __init__(self, runs: Callable[[], Mapping[str, Path]]) -> None:
        """runs: the run dirs that are there now, by name. May raise OSError."""
        self._runs = runs
        self._rows: dict[str, IndexRow] = {}

    def look(self) -> Mapping[str, Any]:
        """All rows, the newest first."""
        try:
            there = self._runs()
        except OSError as error:
            return {"trouble": f"cannot list the directory: {str(error.strerror).lower()}"}
        self._rows = {name: self._rows.get(name) or IndexRow(name, path) for name, path in there.items()}
        rows = [row.look() for row in self._rows.values()]
        return {"rows": sorted(rows, key=lambda row: float(row.get("newest", 0.0)), reverse=True), "trouble": ""}


class IndexRow:
    """One run dir. Of a job that is over only the row is kept; should its journal grow, it is read anew."""

    def __init__(self, name: str, run_dir: Path) -> None:
        self._name, self._run_dir = name, run_dir
        self._told: dict[str, Any] = {}
        self._begin()

    def _begin(self) -> None:
        self._tail, self._state = GrowingJournal(self._run_dir), RunState(self._run_dir)
        self._events: list[Mapping[str, Any]] = []
        self._files, self._forgot = 1, False

    def look(self) -> dict[str, Any]:
        """The row now, JSON-ready."""
        try:
            new = self._read()
        except OSError as error:
            why = f"cannot read its journal: {str(error.strerror).lower()}"
            return {**self._told, "name": self._name, "state": "unreadable", "sentence": why}
        if new:
            self._told = self._tell()
        state, sentence = self._state.told()
        if state in _OVER:
            self._events, self._forgot = [], True
        return {**self._told, "name": self._name, "state": state, "sentence": SafeText([]).line(sentence, 300)}

    def _read(self) -> bool:
        """Whether there is something new."""
        new = False
        for event in self._tail.appended():
            if self._forgot or self._tail.files != self._files:
                self._begin()
                return self._read()
            self._state.hear(event)
            self._keep(sound(event))
            new = True
        return new

    def _keep(self, event: Mapping[str, Any]) -> None:
        """Of steps that follow each other with nothing between only the newest is kept: the story is the same."""
        last = self._events[-1] if self._events else {}
        if event["event"] == last.get("event") == "progress" and event.get("attempt") == last.get("attempt"):
            self._events.pop()
        self._events.append(event)

    def _tell(self) -> dict[str, Any]:
        story, words = goodput.tell(moments(self._events)), SafeText([])
        last = story.incidents[-1] if story.incidents else None
        return {
            "job_id": words.line(story.job_id, 200),
            "ranks": story.ranks,
            "step": self._state.step,
            "goodput": story.effective,
            "incidents": len(story.incidents),
            "incident": "" if last is None else words.line(last.sentence, 300),
            "begin": story.begin,
            "newest": story.end,
        }

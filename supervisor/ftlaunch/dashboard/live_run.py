"""One job as its page shows it, live."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftlaunch.channel.claims import FOLDER
from ftlaunch.dashboard.growing_journal import GrowingJournal
from ftlaunch.dashboard.run_state import RunState
from ftlaunch.report_page.data import NoEvents, page_data
from ftlaunch.report_page.words import SafeText


class LiveRun:
    """Of one run dir."""

    def __init__(self, run_dir: Path, *, listed: bool) -> None:
        """listed: it is one of several that an index shows."""
        self.run_dir, self._listed = run_dir, listed
        self._tail, self._files, self._state = GrowingJournal(run_dir), 0, RunState(run_dir)
        self.data: dict[str, Any] | None = None
        """the newest page; None where there was none yet"""
        self.trouble = ""
        """why the journal cannot be read now"""

    def look(self) -> Mapping[str, Any]:
        """What has changed: parts of the page, and `live`. The journal is gone: `live` says so, the page stays."""
        try:
            found = self._read()
        except (OSError, NoEvents) as error:
            why = str(error.strerror).lower() if isinstance(error, OSError) else str(error)
            self.trouble = f"cannot read the journal in {self.run_dir}: {why}"
            return {"live": self._live("gone", self.trouble)}
        self.trouble = ""
        return {**found, "live": self._live(*self._state.told())}

    def _read(self) -> dict[str, Any]:
        new = False
        for event in self._tail.appended():
            if self._files != self._tail.files:
                self._files, self._state = self._tail.files, RunState(self.run_dir)
            self._state.hear(event)
            new = True
        if not new:
            return {}
        self.data = page_data(self.run_dir)
        return self.data

    def _live(self, state: str, sentence: str) -> dict[str, Any]:
        """nodes: the job is one of several, of which one may be asked to leave."""
        several = (self.run_dir / FOLDER).is_dir()
        return {
            "state": state,
            "sentence": SafeText([]).line(sentence),
            "newest": self._state.newest,
            "nodes": several,
            "listed": self._listed,
        }

"""The newest run of a supervisor in the logs of its job. Each run counts attempts from 0: runs share logs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftlaunch.history.journal import EVENTS
from ftlaunch.history.logs.notes import beginnings
from ftlaunch.history.rank_logs import LogReader, attempts
from ftlaunch.history.timeline import epoch_seconds

_BEFORE_IT_IS_TOLD = 60.0  # seconds: a note is written before the journal tells of its attempt
_STARTED, _ATTEMPTS = "job_started", ("attempt_started", "attempt_adopted")


class NewestRun:
    """As the journal tells of it, which may grow meanwhile."""

    def __init__(self, run_dir: Path, log_dir: Path) -> None:
        self._log_dir = log_dir
        self._journal = LogReader(run_dir / EVENTS)
        self.since = 0.0
        """when the run began, in seconds of the epoch"""
        self._written_since = 0.0  # no note of this run is older; earlier than `since` where the clock was set back
        self._own: set[int] = set()  # numbers of attempts
        self._earlier: set[int] = set()  # the same, of all runs before
        self._begun: dict[int, dict[int, int]] = {}  # by attempt and rank, as the notes say it

    def look(self) -> None:
        """Read what the journal has told since. Raises OSError."""
        self._begun.clear()
        for line in self._journal.read():
            if any(name in line for name in (_STARTED, *_ATTEMPTS)):
                self._take(line)

    def _take(self, line: str) -> None:
        try:
            event: Mapping[str, Any] = json.loads(line)
            name, attempt, at = event["event"], int(event["attempt"]), epoch_seconds(event["t"])
        except (ValueError, KeyError, TypeError):
            return  # torn by a crash
        if name == _STARTED:
            self.since, self._earlier, self._own = at, self._earlier | self._own, set()
            self._written_since = at
        elif name in _ATTEMPTS:
            self._own.add(attempt)
            if at < self.since:
                self._written_since = min(self._written_since, at - _BEFORE_IT_IS_TOLD)

    def attempts(self) -> list[int]:
        """Those of this run that have a folder, in order.

        An attempt of which the journal has nothing is one of them: a full disk takes no events.
        """
        return [n for n in attempts(self._log_dir) if n in self._own or n not in self._earlier]

    def earlier(self) -> list[int]:
        """Those that only runs before this one have had, in order."""
        return [n for n in attempts(self._log_dir) if n in self._earlier and n not in self._own]

    def begin(self, attempt: int, rank: int, log: Path) -> int | None:
        """Where in a log this run begins, in bytes; None while it has nothing there. Raises OSError."""
        if attempt not in self._earlier:
            return 0
        if rank in self._noted(attempt, log.parent):
            return self._begun[attempt][rank]
        if log.stat().st_mtime < self._written_since:
            return None
        del self._begun[attempt]  # each note is written before what it speaks of: by now it is there
        return self._noted(attempt, log.parent).get(rank, 0)

    def _noted(self, attempt: int, folder: Path) -> dict[int, int]:
        if attempt not in self._begun:
            known = self._begun[attempt] = {}
            for note in beginnings(folder):
                if note.begins == "attempt" and note.at >= self._written_since:
                    # logs grow: the longest is the newest beginning, whatever clocks say
                    known.update((rank, max(length, known.get(rank, 0))) for rank, length in note.lengths.items())
        return self._begun[attempt]

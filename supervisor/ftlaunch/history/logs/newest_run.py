"""Finds the newest run of a supervisor in the logs of its job.

Each run counts attempts from 0, so that several runs share the logs of an attempt. Notes beside the logs say where in a
log each run begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftlaunch.history.journal import JournalFollower
from ftlaunch.history.logs.notes import beginnings
from ftlaunch.history.rank_logs import attempts
from ftlaunch.history.timeline import epoch_seconds

_NOTE_LEAD = 60.0  # seconds; a note may be this much older than the journal's event of its attempt
_STARTED = "job_started"
_ATTEMPTS = ("attempt_started", "attempt_adopted")


class NewestRun:
    """The attempts of the newest run, by the journal, which may grow meanwhile."""

    def __init__(self, run_dir: Path, log_dir: Path) -> None:
        """Start without knowledge; `look` reads the journal."""
        self._log_dir = log_dir
        self._journal = JournalFollower(run_dir, (_STARTED, *_ATTEMPTS), on_replaced=self._forget)
        self._forget()

    def _forget(self) -> None:
        """Begin without knowledge: also when another journal has taken the place of the one that was read."""
        self.since = 0.0
        """time at which the run began, in seconds of the epoch"""
        self._written_since = 0.0  # no note of this run is older; earlier than `since` if the clock was set back
        self._own: set[int] = set()  # numbers of this run's attempts
        self._earlier: set[int] = set()  # numbers of the attempts of all runs before
        self._beginnings: dict[int, dict[int, int]] = {}  # by attempt and rank: where the run begins, by the notes

    def look(self) -> None:
        """Read what has been added to the journal since the last call. Raises OSError."""
        self._beginnings.clear()
        for event in self._journal.events():
            self._take_in(event)

    def _take_in(self, event: Mapping[str, Any]) -> None:
        """Take in a start or an attempt. An event without a number of its attempt or without a time is passed over."""
        try:
            attempt = int(event["attempt"])
            at = epoch_seconds(event["t"])
        except (ValueError, KeyError, TypeError, OverflowError):
            return
        if event["event"] == _STARTED:
            self.since = at
            self._written_since = at
            self._earlier |= self._own
            self._own = set()
        else:
            self._own.add(attempt)
            if at < self.since:
                self._written_since = min(self._written_since, at - _NOTE_LEAD)

    def attempts(self) -> list[int]:
        """Return the attempts of this run that have logs, in order.

        They include attempts that the journal does not mention, because a full disk takes no events.
        """
        return [number for number in attempts(self._log_dir) if number in self._own or number not in self._earlier]

    def earlier(self) -> list[int]:
        """Return the attempts with logs that only earlier runs have had, in order."""
        return [number for number in attempts(self._log_dir) if number in self._earlier and number not in self._own]

    def begin(self, attempt: int, rank: int, log: Path) -> int | None:
        """Return where in a log this run begins, in bytes; None if the run has written nothing to the log yet.

        Args:
            attempt: number of the attempt.
            rank: number of the rank.
            log: the log of that rank and attempt.

        Raises:
            OSError: the notes or the log cannot be read.
        """
        if attempt not in self._earlier:
            return 0
        if rank in self._read_beginnings(attempt, log.parent):
            return self._beginnings[attempt][rank]
        if log.stat().st_mtime < self._written_since:
            return None
        # The log has been written since, and a note is written before its log, so the note can be read by now.
        del self._beginnings[attempt]
        return self._read_beginnings(attempt, log.parent).get(rank, 0)

    def _read_beginnings(self, attempt: int, folder: Path) -> dict[int, int]:
        """Return where this run begins in the logs of an attempt, by rank; read from the notes once. Raises OSError."""
        if attempt not in self._beginnings:
            known: dict[int, int] = {}
            self._beginnings[attempt] = known
            for note in beginnings(folder):
                if note.begins == "attempt" and note.at >= self._written_since:
                    for rank, length in note.lengths.items():
                        # Logs only grow, so the largest offset is the newest beginning, whatever the clocks say.
                        known[rank] = max(length, known.get(rank, 0))
        return self._beginnings[attempt]

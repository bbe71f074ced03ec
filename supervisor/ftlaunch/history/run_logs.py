"""Finds the newest run of a supervisor in the logs of its job, and follows its lines.

Each run counts attempts from 0, so that several runs share the logs of an attempt. Notes beside the logs say where in a
log each run begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ftlaunch.history.journal import JournalFollower
from ftlaunch.history.log_notes import beginnings
from ftlaunch.history.rank_logs import LogReader, attempts, logs_of
from ftlaunch.history.timeline import epoch_seconds

_NOTE_LEAD_SECONDS = 60.0  # a note may be this much older than the journal's event of its attempt
_STARTED = "job_started"
_ATTEMPTS = ("attempt_started", "attempt_adopted")
Begins = Mapping[tuple[int, int], int]
"""offsets in logs in bytes, by attempt and rank"""


class NewestRun:
    """The attempts of the newest run, by the journal, which may grow meanwhile."""

    def __init__(self, run_dir: Path, log_dir: Path) -> None:
        """Start without knowledge; `read_journal` reads the journal."""
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

    def read_journal(self) -> None:
        """Read what has been added to the journal since the last call. Raises OSError."""
        self._beginnings.clear()
        for event in self._journal.events():
            self._apply(event)

    def _apply(self, event: Mapping[str, Any]) -> None:
        """Note a start or an attempt. An event without a number of its attempt or without a time is passed over."""
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
                self._written_since = min(self._written_since, at - _NOTE_LEAD_SECONDS)

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


class Follower:
    """Reads new lines of some or all ranks of a supervisor's newest run, from an attempt on. Never waits for lines."""

    def __init__(
        self, run: NewestRun, log_dir: Path, ranks: Collection[int], attempt: int, begins: Begins | None = None
    ) -> None:
        """Start before the first line.

        Args:
            run: the run.
            log_dir: directory of the logs.
            ranks: the ranks to follow; empty for all.
            attempt: the first attempt to follow.
            begins: where to begin in logs that are not to be read from the begin of the run.
        """
        self._run = run
        self._dir = log_dir
        self._ranks = ranks
        self._attempt = attempt
        self._begins = begins or {}
        self._readers: dict[tuple[int, int], LogReader] = {}  # by attempt and rank

    def read(self, *, last: bool = False) -> Iterator[tuple[int, str]]:
        """Yield rank and line for all lines that have come since the last call.

        Args:
            last: nothing more will come, so that unfinished lines are yielded as well.

        Raises:
            OSError: the journal or a log cannot be read.
        """
        self._run.read_journal()
        numbers = [attempt for attempt in self._run.attempts() if attempt >= self._attempt]
        for attempt in numbers:
            is_over = last or attempt != numbers[-1]
            for rank, path in logs_of(self._dir, attempt).items():
                if self._ranks and rank not in self._ranks:
                    continue
                reader = self._reader(attempt, rank, path)
                if reader is not None:
                    for line in reader.read(last=is_over):
                        yield rank, line

    def _reader(self, attempt: int, rank: int, path: Path) -> LogReader | None:
        """Return the reader of a log; None if the rank has not begun in this run. Raises OSError."""
        key = (attempt, rank)
        if key not in self._readers:
            begin = self._begins[key] if key in self._begins else self._run.begin(attempt, rank, path)
            if begin is None:
                return None
            self._readers[key] = LogReader(path, begin)
        return self._readers[key]

"""Finds the newest run of a supervisor in the logs of its job, and follows its lines.

Each run counts attempts from 0, so that several runs share the logs of an attempt. Notes beside the logs say where in a
log each run begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ftlaunch.history.journal import JournalFollower
from ftlaunch.history.rank_logs import Log, LogFolder, LogReader, Logs
from ftlaunch.history.timeline import epoch_seconds

_NOTE_LEAD_SECONDS = 60.0  # a note may be this much older than the journal's event of its attempt
_STARTED = "job_started"
_ATTEMPTS = ("attempt_started", "attempt_adopted")
Begins = Mapping[tuple[int, int], int]
"""offsets in logs in bytes, by attempt and rank"""


class NewestRun:
    """The attempts of the newest run, by the journal, which may grow meanwhile."""

    def __init__(self, run_dir: Path, logs: Logs) -> None:
        """Start without knowledge; `read_journal` reads the journal.

        Args:
            run_dir: the run dir, with the journal.
            logs: the logs of the job.
        """
        self._logs = logs
        self._journal = JournalFollower(run_dir, (_STARTED, *_ATTEMPTS), on_replaced=self._forget)
        self._forget()

    def _forget(self) -> None:
        """Begin without knowledge: also when another journal has taken the place of the one that was read."""
        self.since = 0.0
        """time at which the run began, in seconds of the epoch"""
        self._written_since = 0.0  # no note of this run is older; earlier than `since` if the clock was set back
        self._own: set[int] = set()  # numbers of this run's attempts
        self._earlier: set[int] = set()  # numbers of the attempts of all runs before
        # by place and attempt, then by rank: where the run begins, by the notes
        self._beginnings: dict[tuple[str, int], dict[int, int]] = {}
        self._hosts: dict[int, list[str]] = {}  # by attempt: the hosts of the job's places

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
            self._hosts.clear()
        else:
            self._own.add(attempt)
            if isinstance(hosts := event.get("hosts"), list):
                self._hosts[attempt] = list(map(str, hosts))
            if at < self.since:
                self._written_since = min(self._written_since, at - _NOTE_LEAD_SECONDS)

    def attempts(self) -> list[int]:
        """Return the attempts of this run that have logs, in order.

        They include attempts that the journal does not mention, because a full disk takes no events.
        """
        found = self._logs.attempts()
        if found is None:
            return sorted(self._own)
        return [number for number in found if number in self._own or number not in self._earlier]

    def earlier(self) -> list[int]:
        """Return the attempts with logs that only earlier runs have had, in order."""
        found = self._logs.attempts()
        only_earlier = self._earlier - self._own
        return sorted(only_earlier) if found is None else [number for number in found if number in only_earlier]

    def hosts(self, attempt: int) -> list[str]:
        """Return the hosts of an attempt of this run by place; none if the journal does not tell."""
        return self._hosts.get(attempt, [])

    def logs_of(self, attempt: int) -> dict[int, Log]:
        """Return the logs of an attempt by rank.

        Of several logs of one rank, which several places may have of several runs, the one is returned in which this
        run has begun; else the one that was written last.

        Raises:
            OSError: a place cannot be read.
        """
        found: dict[int, Log] = {}
        for folder in self._logs.folders(attempt):
            for rank, written_at in folder.logs().items():
                log = Log(folder, rank, written_at)
                if rank not in found or self._rating(log) > self._rating(found[rank]):
                    found[rank] = log
        return dict(sorted(found.items()))

    def _rating(self, log: Log) -> tuple[bool, float]:
        return log.rank in self._read_beginnings(log.folder), log.written_at

    def begin(self, log: Log) -> int | None:
        """Return where in a log this run begins, in bytes; None if the run has written nothing to the log yet.

        Raises:
            OSError: the notes cannot be read.
        """
        folder = log.folder
        if folder.attempt not in self._earlier and self._logs.attempts() is not None:
            return 0
        beginnings = self._read_beginnings(folder)
        if log.rank in beginnings:
            return beginnings[log.rank]
        if log.written_at < self._written_since:
            return None
        # The log has been written since, and a note is written before its log, so the note can be read by now.
        del self._beginnings[folder.place, folder.attempt]
        return self._read_beginnings(folder).get(log.rank, 0)

    def _read_beginnings(self, folder: LogFolder) -> dict[int, int]:
        """Return where this run begins in the logs of a folder, by rank; read from the notes once. Raises OSError."""
        key = (folder.place, folder.attempt)
        if key not in self._beginnings:
            known: dict[int, int] = {}
            self._beginnings[key] = known
            for note in folder.beginnings():
                if note.begins == "attempt" and note.at >= self._written_since:
                    for rank, length in note.lengths.items():
                        # Logs only grow, so the largest offset is the newest beginning, whatever the clocks say.
                        known[rank] = max(length, known.get(rank, 0))
        return self._beginnings[key]


class Follower:
    """Reads new lines of some or all ranks of a supervisor's newest run, from an attempt on. Never waits for lines."""

    def __init__(self, run: NewestRun, ranks: Collection[int], attempt: int, begins: Begins | None = None) -> None:
        """Start before the first line.

        Args:
            run: the newest run.
            ranks: the ranks to read; empty for all.
            attempt: number of the first attempt to read.
            begins: where to begin in some logs; the others are read from where the run begins in them.
        """
        self._run = run
        self._ranks = ranks
        self._attempt = attempt
        self._begins = begins or {}
        self._readers: dict[tuple[int, int], LogReader] = {}  # by attempt and rank
        self._over: set[tuple[float, int]] = set()  # attempts that were read to their end, with the begin of their run

    def read(self, *, last: bool = False) -> Iterator[tuple[Log, str]]:
        """Yield log and line for all lines that have come since the last call.

        Args:
            last: nothing more will come, so that unfinished lines are yielded as well.

        Raises:
            OSError: the journal or a log cannot be read.
        """
        self._run.read_journal()
        numbers = [attempt for attempt in self._run.attempts() if attempt >= self._attempt]
        for attempt in numbers:
            # No rank of an attempt is left when the next one begins, so that all of its lines are read then.
            is_over = last or attempt != numbers[-1]
            if (self._run.since, attempt) in self._over:
                continue
            if is_over:
                self._over.add((self._run.since, attempt))
            for rank, log in self._run.logs_of(attempt).items():
                if self._ranks and rank not in self._ranks:
                    continue
                reader = self._reader(log)
                if reader is not None:
                    for line in reader.read(log.read, last=is_over, gap_reason=log.folder.gap_reason):
                        yield log, line

    def _reader(self, log: Log) -> LogReader | None:
        """Return the reader of a log; None if the rank has not begun in this run. Raises OSError."""
        key = (log.folder.attempt, log.rank)
        if key not in self._readers:
            begin = self._begins[key] if key in self._begins else self._run.begin(log)
            if begin is None:
                return None
            self._readers[key] = LogReader(begin)
        return self._readers[key]

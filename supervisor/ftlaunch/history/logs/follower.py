"""Follows the logs of a run's ranks as they grow, for `ftctl logs`. Each call reads what is there, and never waits."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from ftlaunch.history.logs.newest_run import NewestRun
from ftlaunch.history.rank_logs import LogReader, logs_of

Begins = Mapping[tuple[int, int], int]
"""offsets in logs in bytes, by attempt and rank"""


class Follower:
    """Reads the lines of some or all ranks of a supervisor's newest run, from an attempt on."""

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
        self._run.look()
        attempts = [attempt for attempt in self._run.attempts() if attempt >= self._attempt]
        for attempt in attempts:
            is_over = last or attempt != attempts[-1]
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

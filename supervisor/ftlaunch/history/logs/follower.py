"""What the ranks of a run print, as they print it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from ftlaunch.history.logs.newest_run import NewestRun
from ftlaunch.history.rank_logs import LogReader, logs_of

Begins = Mapping[tuple[int, int], int]
"""Offsets in logs, by attempt and rank."""


class Follower:
    """The lines of all ranks, or some, of the newest run of a supervisor, from an attempt on."""

    def __init__(
        self, run: NewestRun, log_dir: Path, ranks: Collection[int], attempt: int, begins: Begins | None = None
    ) -> None:
        """ranks: none of them means all. begins: where logs are read that are not to be shown from the run's begin."""
        self._run, self._dir, self._ranks, self._attempt = run, log_dir, ranks, attempt
        self._begins = begins or {}
        self._lines: dict[tuple[int, int], LogReader] = {}  # by attempt and rank

    def read(self, *, last: bool = False) -> Iterator[tuple[int, str]]:
        """Rank and line of what was printed since. last: nothing more will come. Raises OSError."""
        self._run.look()
        there = [attempt for attempt in self._run.attempts() if attempt >= self._attempt]
        for attempt in there:
            over = last or attempt != there[-1]
            for rank, path in logs_of(self._dir, attempt).items():
                if not self._ranks or rank in self._ranks:
                    lines = self._reader(attempt, rank, path)
                    yield from ((rank, line) for line in (lines.read(last=over) if lines else ()))

    def _reader(self, attempt: int, rank: int, path: Path) -> LogReader | None:
        """None: the rank has not begun in this run."""
        key = attempt, rank
        if key not in self._lines:
            begin = self._begins[key] if key in self._begins else self._run.begin(attempt, rank, path)
            if begin is None:
                return None
            self._lines[key] = LogReader(path, begin)
        return self._lines[key]

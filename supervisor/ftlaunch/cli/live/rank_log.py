"""The end of a rank's log, and what the rank prints from then on, through all attempts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ftlaunch.common.formatting import printable
from ftlaunch.history.rank_logs import LogReader, attempts
from ftlaunch.ranks.log_files import log_path, size

_END = 128 << 10  # bytes of the first log that are shown


class RankLog:
    """Of one rank."""

    def __init__(self, log_dir: Path, rank: int) -> None:
        self._dir, self._rank = log_dir, rank
        self._attempt = -1
        self._reader: LogReader | None = None

    def read(self) -> Iterator[str]:
        """The lines that have come since; a line on each attempt that has begun. Raises OSError."""
        newest = max((n for n in attempts(self._dir) if log_path(self._dir, n, self._rank).exists()), default=-1)
        if newest > self._attempt:
            yield from self._lines(last=True)
            path = log_path(self._dir, newest, self._rank)
            begin = max(size(path) - _END, 0) if self._reader is None else 0
            yield f"--- attempt {newest}: {path}" + (f", the last {size(path) - begin} bytes" if begin else "")
            self._attempt, self._reader = newest, LogReader(path, begin)
        yield from self._lines()

    def _lines(self, *, last: bool = False) -> Iterator[str]:
        if self._reader is not None:
            yield from map(printable, self._reader.read(last=last))

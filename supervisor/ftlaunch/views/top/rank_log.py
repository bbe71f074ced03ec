"""The end of a rank's log, and what the rank prints from then on, through all attempts and runs of the supervisor."""

from __future__ import annotations

from collections.abc import Iterator

from ftlaunch.common.formatting import printable
from ftlaunch.history.logs.newest_run import NewestRun
from ftlaunch.history.rank_logs import LogReader
from ftlaunch.history.runs import Run
from ftlaunch.ranks.log_files import log_path, size

_END = 128 << 10  # bytes of the first log that are shown


class RankLog:
    """Of one rank."""

    def __init__(self, run: Run, rank: int) -> None:
        self._dir, self._rank = run.log_dir, rank
        self._newest = NewestRun(run.run_dir, run.log_dir)
        self._shown = (0.0, -1)  # the run, by its begin, and the attempt
        self._reader: LogReader | None = None

    def read(self) -> Iterator[str]:
        """The lines that have come since; a line on each attempt that has begun. Raises OSError."""
        self._newest.look()
        for attempt in self._newest.attempts()[-1:]:
            path = log_path(self._dir, attempt, self._rank)
            begin = self._newest.begin(attempt, self._rank, path) if path.exists() else None
            if begin is not None and (self._newest.since, attempt) > self._shown:
                yield from self._lines(last=True)
                length = size(path)
                begin = max(length - _END, begin) if self._reader is None else begin
                yield f"--- attempt {attempt}: {path}" + (f", the last {length - begin} bytes" if begin else "")
                self._shown, self._reader = (self._newest.since, attempt), LogReader(path, begin)
        yield from self._lines()

    def _lines(self, *, last: bool = False) -> Iterator[str]:
        if self._reader is not None:
            yield from map(printable, self._reader.read(last=last))

"""Follows a rank's log through all attempts and runs of the supervisor, beginning with the end of the newest log."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ftlaunch.common.formatting import printable
from ftlaunch.history.rank_logs import LocalFolder, LocalLogs, Log, LogReader, read_piece
from ftlaunch.history.run_logs import NewestRun
from ftlaunch.history.runs import Run
from ftlaunch_contract.files.regular_file import file_size

_END_BYTES = 128 << 10  # end of the first log that is shown


class RankLog:
    """The log of one rank."""

    def __init__(self, run: Run, rank: int) -> None:
        self._dir = run.log_dir
        self._rank = rank
        self._newest = NewestRun(run.run_dir, LocalLogs(run.log_dir))
        self._shown = (0.0, -1)  # begin of the run and number of the attempt that are shown
        self._reader: LogReader | None = None
        self._folder: LocalFolder | None = None  # what the reader reads

    def read(self) -> Iterator[str]:
        """Yield the lines since the last call, with a line about each attempt that has begun.

        Raises:
            OSError: the log or the journal cannot be read.
        """
        self._newest.read_journal()
        for attempt in self._newest.attempts()[-1:]:
            folder = LocalFolder(self._dir, attempt)
            path = folder.path(self._rank)
            begin = None
            if path.exists():
                begin = self._newest.begin(Log(folder, self._rank, path.stat().st_mtime))
            if begin is not None and (self._newest.since, attempt) > self._shown:
                yield from self._lines(last=True)
                length = file_size(path)
                begin = max(length - _END_BYTES, begin) if self._reader is None else begin
                yield f"--- attempt {attempt}: {path}" + (f", the last {length - begin} bytes" if begin else "")
                self._shown = (self._newest.since, attempt)
                self._folder = folder
                self._reader = LogReader(begin)
        yield from self._lines()

    def _lines(self, *, last: bool = False) -> Iterator[str]:
        if self._reader is not None and self._folder is not None:
            log = self._folder.path(self._rank)
            yield from map(printable, self._reader.read(partial(read_piece, log), last=last))

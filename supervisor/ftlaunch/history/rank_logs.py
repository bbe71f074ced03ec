"""Lists the logs of a job's ranks, and reads their lines as the logs grow. Used by commands such as `ftctl logs`.

Logs lie in places: the log folder of this machine (`LocalLogs`), or those of nodes that are asked over the network
(cli/terminal/unshared_logs.py). Both are read through `Logs` and `LogFolder`.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from ftlaunch.common.formatting import size
from ftlaunch.common.line_splitter import LineSplitter
from ftlaunch.history.log_notes import LengthNote, beginnings, lengths_at
from ftlaunch_contract.files.regular_file import open_regular

_ATTEMPT = re.compile(r"attempt_(\d+)")
_RANK = re.compile(r"rank_(\d+)\.log")
_PIECE = 1 << 20  # bytes that are read at once
_TAIL = 64 << 10  # bytes that are searched for the beginning of a line
_KEPT_SHORT = "as log_max_size asks"
Piece = tuple[int, bytes]
"""a piece of a log: its offset in bytes, and its content, which is not empty"""


class LogFolder(Protocol):
    """The logs of one attempt in one place.

    Every method raises OSError if the place cannot be read.
    """

    place: str
    """what the place is called; no other place of the job is called so"""
    attempt: int
    """number of the attempt"""
    gap_reason: str
    """why bytes may be missing in the middle of a log, as the end of a sentence"""

    def logs(self) -> Mapping[int, float]:
        """Return the ranks that have logs here, and when each log was written last, in seconds of the epoch."""

    def beginnings(self) -> Sequence[LengthNote]:
        """Return the notes that say where ranks began, of all runs, the oldest first."""

    def begins_since(self, when: float) -> Mapping[int, int]:
        """Return where in each log begins what was printed since a time, in bytes by rank.

        Args:
            when: seconds of the epoch.
        """

    def read(self, rank: int, offset: int) -> Piece | None:
        """Return the next piece of a rank's log from an offset on; None if there is no more now."""


class Log(NamedTuple):
    """The log of one rank in one attempt."""

    folder: LogFolder
    rank: int
    written_at: float
    """when it was written last, in seconds of the epoch"""

    def read(self, offset: int) -> Piece | None:
        """Return the next piece from an offset on; None if there is no more now. Raises OSError."""
        return self.folder.read(self.rank, offset)


class Logs(Protocol):
    """The logs of a job, in all of their places."""

    def attempts(self) -> list[int] | None:
        """Return the attempts that have logs, in order.

        None means that the places may have logs of other jobs, so that only the journal tells which attempts there are.
        """

    def folders(self, attempt: int) -> Sequence[LogFolder]:
        """Return the places in which logs of an attempt may lie. Raises OSError."""


class LocalFolder:
    """The logs of one attempt in a log folder of this machine."""

    gap_reason = _KEPT_SHORT

    def __init__(self, log_dir: Path, attempt: int) -> None:
        """Read nothing yet.

        Args:
            log_dir: the log folder of the job.
            attempt: number of the attempt.
        """
        self.place = str(log_dir)
        self.attempt = attempt
        self._log_dir = log_dir
        self._folder = log_dir / f"attempt_{attempt}"

    def logs(self) -> dict[int, float]:
        """Return the ranks that have logs here, and when each log was written last, in seconds of the epoch."""
        return {rank: path.stat().st_mtime for rank, path in logs_of(self._log_dir, self.attempt).items()}

    def beginnings(self) -> list[LengthNote]:
        """Return the notes that say where ranks began, of all runs, the oldest first."""
        return beginnings(self._folder)

    def begins_since(self, when: float) -> dict[int, int]:
        """Return where to begin reading each log: at its length of the time `when`, or at its end if not written since.

        Args:
            when: seconds of the epoch.
        """
        lengths = lengths_at(self._folder, when)
        begins = {}
        for rank, path in logs_of(self._log_dir, self.attempt).items():
            found = path.stat()
            begins[rank] = 0
            if found.st_mtime < when:
                begins[rank] = found.st_size
            elif lengths is not None:
                begins[rank] = start_of_line(path, lengths.get(rank, 0))
        return begins

    def path(self, rank: int) -> Path:
        """Return the file of a rank's log."""
        return self._folder / f"rank_{rank}.log"

    def read(self, rank: int, offset: int) -> Piece | None:
        """Return the next piece of a rank's log from an offset on; None if there is no more now."""
        return read_piece(self.path(rank), offset)


class LocalLogs:
    """The logs of a job in its log folder on this machine."""

    def __init__(self, log_dir: Path) -> None:
        """Read nothing yet. log_dir: the log folder of the job."""
        self._log_dir = log_dir

    def attempts(self) -> list[int]:
        """Return the attempts that have logs, in order; none if the folder cannot be read."""
        return attempts(self._log_dir)

    def folders(self, attempt: int) -> list[LocalFolder]:
        """Return the folder of an attempt."""
        return [LocalFolder(self._log_dir, attempt)]


def attempts(log_dir: Path) -> list[int]:
    """Return the attempts that have logs, in order; none if the folder cannot be read."""
    return sorted(_numbers(log_dir, _ATTEMPT))


def logs_of(log_dir: Path, attempt: int) -> dict[int, Path]:
    """Return the logs of an attempt by rank; none if the folder cannot be read."""
    folder = log_dir / f"attempt_{attempt}"
    return {rank: folder / f"rank_{rank}.log" for rank in sorted(_numbers(folder, _RANK))}


def _numbers(folder: Path, name: re.Pattern[str]) -> Iterator[int]:
    """Yield the numbers in the names in a folder that match a pattern; none if the folder cannot be read."""
    try:
        found = [name.fullmatch(path.name) for path in folder.iterdir()]
    except OSError:
        return
    yield from (int(match[1]) for match in found if match is not None)


def start_of_line(path: Path, offset: int) -> int:
    """Return where the line begins that contains an offset, or the offset itself if the line begins over 64 KiB before.

    Raises:
        OSError: the file cannot be read.
    """
    begin = max(0, offset - _TAIL)
    with open_regular(path) as file:
        file.seek(begin)
        before = file.read(offset - begin)
    return begin + before.rfind(b"\n") + 1 if b"\n" in before or not begin else offset


def read_piece(path: Path, offset: int, most: int = _PIECE) -> Piece | None:
    """Return the next piece of a file from an offset on, at most `most` bytes; None if there is no more now.

    Raises:
        OSError: the file cannot be read.
    """
    with open_regular(path) as file:
        while (found := data_from(file.fileno(), offset)) is not None:
            begin, end = found
            if content := os.pread(file.fileno(), min(most, end - begin), begin):
                return begin, content
            offset = end  # the file has become shorter meanwhile
    return None


class LogReader:
    """Reads the lines of one growing log, each line once."""

    def __init__(self, offset: int = 0) -> None:
        """Start at an offset in bytes."""
        self._offset = offset
        self._splitter = LineSplitter(long_lines="cut")

    def read(
        self, read: Callable[[int], Piece | None], *, last: bool = False, gap_reason: str = _KEPT_SHORT
    ) -> Iterator[str]:
        """Yield the lines that have become complete since the last call.

        A sentence takes the place of bytes that are missing in the middle of the log.

        Args:
            read: returns the next piece of the log from an offset on; None if there is no more now.
            last: yield an unfinished line at the end of the log as well.
            gap_reason: why bytes may be missing, as the end of a sentence.

        Raises:
            OSError: the log cannot be read.
        """
        while (piece := read(self._offset)) is not None:
            begin, content = piece
            if begin > self._offset:
                if rest := self._splitter.flush():
                    yield rest.decode(errors="replace")
                yield f"... {size(begin - self._offset)} are left out here, {gap_reason} ..."
            self._offset = begin + len(content)
            for line in self._splitter.split(content):
                yield line.decode(errors="replace")
        if last and (rest := self._splitter.flush()):
            yield rest.decode(errors="replace")


def data_from(fd: int, offset: int) -> tuple[int, int] | None:
    """Return begin and end of the next data in a file from an offset on; None if no data follow.

    The supervisor may have punched holes into a log (ranks/log_holes.py), which are skipped.

    Raises:
        OSError: the file system gives an error.
    """
    try:
        begin = os.lseek(fd, offset, os.SEEK_DATA)
        return begin, os.lseek(fd, begin, os.SEEK_HOLE)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None


def start_of_last_lines(path: Path, count: int) -> int:
    """Return the offset at which the last `count` lines of a file begin, or those of them in its last 64 KiB.

    Raises:
        OSError: the file cannot be read.
    """
    with open_regular(path) as file:
        end = file.seek(0, os.SEEK_END)
        begin = file.seek(max(0, end - _TAIL))
        tail = file.read(end - begin)
    lines = tail.splitlines(keepends=True)
    return end - sum(map(len, lines[-count:]))

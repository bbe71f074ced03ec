"""Lists the logs of a job's ranks, and reads their lines as the logs grow. Used by commands such as `ftctl logs`."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ftlaunch.common.formatting import size
from ftlaunch.common.line_splitter import LineSplitter
from ftlaunch_contract.files.regular_file import open_regular

_ATTEMPT = re.compile(r"attempt_(\d+)")
_RANK = re.compile(r"rank_(\d+)\.log")
_PIECE = 1 << 20  # bytes that are read at once
_TAIL = 64 << 10  # bytes that are searched for the beginning of a line


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


class LogReader:
    """Reads the lines of one growing file, each line once."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        """Start at an offset.

        Args:
            path: the file.
            offset: bytes that are skipped at its beginning.
        """
        self._path = path
        self._offset = offset
        self._splitter = LineSplitter(long_lines="cut")

    def read(self, *, last: bool = False) -> Iterator[str]:
        """Yield the lines that have become complete since the last call.

        A sentence takes the place of bytes that the supervisor has freed to keep the log short.

        Args:
            last: yield an unfinished line at the end of the file as well.

        Raises:
            OSError: the file cannot be read.
        """
        with open_regular(self._path) as file:
            while (found := data_from(file.fileno(), self._offset)) is not None:
                begin, end = found
                if begin > self._offset:
                    if rest := self._splitter.flush():
                        yield rest.decode(errors="replace")
                    yield f"... {size(begin - self._offset)} are left out here, as log_max_size asks ..."
                piece = os.pread(file.fileno(), min(_PIECE, end - begin), begin)
                self._offset = begin + len(piece)
                for line in self._splitter.split(piece):
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

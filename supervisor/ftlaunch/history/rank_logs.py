"""What the ranks of a job have printed: which files there are, and their lines as they come."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ftlaunch.common.formatting import size
from ftlaunch.common.line_splitter import LineSplitter
from ftlaunch_contract.files.regular_file import open_regular

_ATTEMPT, _RANK = re.compile(r"attempt_(\d+)"), re.compile(r"rank_(\d+)\.log")
_PIECE = 1 << 20  # bytes
_TAIL = 64 << 10
_LONGEST_LINE = 16 << 20  # bytes of a line that are shown
_CUT = b" ... (cut here: the log has the whole line)"


def attempts(log_dir: Path) -> list[int]:
    """The attempts that have logs, in order; none where the folder cannot be read."""
    return sorted(_numbers(log_dir, _ATTEMPT))


def logs_of(log_dir: Path, attempt: int) -> dict[int, Path]:
    """The logs of an attempt, by rank."""
    folder = log_dir / f"attempt_{attempt}"
    return {rank: folder / f"rank_{rank}.log" for rank in sorted(_numbers(folder, _RANK))}


def _numbers(folder: Path, name: re.Pattern[str]) -> Iterator[int]:
    try:
        found = [name.fullmatch(path.name) for path in folder.iterdir()]
    except OSError:
        return
    yield from (int(match[1]) for match in found if match is not None)


def start_of_line(path: Path, offset: int) -> int:
    """Where the line begins in which an offset lies, as far as that is within 64 KiB. Raises OSError."""
    begin = max(0, offset - _TAIL)
    with open_regular(path) as file:
        file.seek(begin)
        before = file.read(offset - begin)
    return begin + before.rfind(b"\n") + 1 if b"\n" in before or not begin else offset


class LogReader:
    """The lines of one log, from where they were read before."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        """offset: bytes that are passed over."""
        self._path, self._offset = path, offset
        self._splitter = LineSplitter(_LONGEST_LINE, _CUT)

    def read(self, *, last: bool = False) -> Iterator[str]:
        """Those that are whole by now; with `last` also what is behind the last line's end. Raises OSError."""
        with open_regular(self._path) as file:
            while (found := data_from(file.fileno(), self._offset)) is not None:
                begin, end = found
                if begin > self._offset:
                    rest = self._splitter.take_rest()
                    yield from [rest.decode(errors="replace")] if rest else []
                    yield f"... {size(begin - self._offset)} are left out here, as log_max_size asks ..."
                piece = os.pread(file.fileno(), min(_PIECE, end - begin), begin)
                self._offset = begin + len(piece)
                yield from (line.decode(errors="replace") for line in self._splitter.split(piece))
        if last and (rest := self._splitter.take_rest()):
            yield rest.decode(errors="replace")


def data_from(fd: int, offset: int) -> tuple[int, int] | None:
    """Where the file has bytes next, and up to where; None behind its end. The supervisor may have made a hole.

    See ranks/logs/holes.py.
    """
    try:
        begin = os.lseek(fd, offset, os.SEEK_DATA)
        return begin, os.lseek(fd, begin, os.SEEK_HOLE)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None


def start_of_last_lines(path: Path, count: int) -> int:
    """The offset at which the last so many lines of a file begin, as far as they lie in its last 64 KiB.

    Raises OSError.
    """
    with open_regular(path) as file:
        end = file.seek(0, os.SEEK_END)
        begin = file.seek(max(0, end - _TAIL))
        tail = file.read(end - begin)
    lines = tail.splitlines(keepends=True)
    return end - sum(map(len, lines[-count:]))

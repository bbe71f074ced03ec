"""The log files of ranks: their paths, their lengths and their ends. Callers run these functions in a file thread."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ftlaunch_contract.files.regular_file import kind_of, open_regular

_TAIL = 64 << 10  # bytes


def log_path(log_dir: Path, attempt: int, rank: int) -> Path:
    """Return the file that takes a rank's output of an attempt."""
    return log_dir / f"attempt_{attempt}" / f"rank_{rank}.log"


def open_log(path: Path) -> int:
    """Open a log for appending, and return the descriptor. The log is created if there is none. Raises OSError.

    Ranks and their children never block when they write to a file, as they might with a pipe. Appending keeps one
    writer from overwriting what another has written.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def tail(path: Path, start: int = 0) -> str:
    """Return the last 64 KiB of a log, but nothing before byte `start`; empty if there is no log. Raises OSError."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - _TAIL))
            return file.read(_TAIL).decode(errors="replace")
    except FileNotFoundError:
        return ""


def length_to_append_to(path: Path) -> int:
    """Return the bytes of a log that a rank is about to append to; 0 if there is no log.

    Raises:
        OSError: the length is not known, or `path` is no regular file. Opening a FIFO, for example, would wait until
            somebody reads from the FIFO.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0
    if kind := kind_of(found.st_mode):
        raise OSError(errno.EINVAL, f"it is no regular file ({kind})", str(path))
    return found.st_size

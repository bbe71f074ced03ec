"""The log files of ranks: where they lie, and how they end."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ftlaunch_contract.files.regular_file import kind_of, open_regular

_TAIL = 64 << 10


def log_path(log_dir: Path, attempt: int, rank: int) -> Path:
    """Where a rank's output of an attempt lies."""
    return log_dir / f"attempt_{attempt}" / f"rank_{rank}.log"


def open_log(path: Path) -> int:
    """Return a descriptor that appends to a log, which is made where there is none. Raises OSError.

    Ranks and their children never block on it, and nothing overwrites what another has written.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def tail(path: Path, start: int = 0) -> str:
    """Return the last 64 KiB of a log, from byte `start` on at the earliest; empty without a log. Raises OSError."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - _TAIL))
            return file.read(_TAIL).decode(errors="replace")
    except FileNotFoundError:
        return ""


def length_to_append_to(path: Path) -> int:
    """Return the bytes of a log that a rank is about to append to; 0 when there is none.

    Raises OSError, also where it is no regular file: to open a FIFO for writing waits until somebody reads it.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0
    if kind := kind_of(found.st_mode):
        raise OSError(errno.EINVAL, f"it is no regular file ({kind})", str(path))
    return found.st_size


def size(path: Path) -> int:
    """Return the bytes of a log; 0 when there is none. Raises OSError where its file system does not tell."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0

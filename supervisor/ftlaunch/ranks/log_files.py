"""The log files of ranks: where they lie, and how they end."""

from __future__ import annotations

import os
from pathlib import Path

_TAIL = 64 << 10


def log_path(log_dir: Path, attempt: int, rank: int) -> Path:
    """Where a rank's output of an attempt lies."""
    return log_dir / f"attempt_{attempt}" / f"rank_{rank}.log"


def tail(path: Path, start: int = 0) -> str:
    """Return the last 64 KiB of a log, from byte `start` on at the earliest; empty without a log. Raises OSError."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - _TAIL))
            return file.read(_TAIL).decode(errors="replace")
    except FileNotFoundError:
        return ""


def size(path: Path) -> int:
    """Return the bytes of a log; 0 when there is none. Raises OSError where its file system does not tell."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0

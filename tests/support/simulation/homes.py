"""The directory, in /dev/shm, of the jobs that one process simulates.

The directory goes with its process, however the process ends: the next process removes abandoned directories.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")
_PREFIX = "ftlaunch-simulated-"

_homes: list[tempfile.TemporaryDirectory[str]] = []


def home() -> Path:
    """Return the directory of this process, whose jobs are simulated one after another."""
    if not _homes:
        remove_abandoned()
        _homes.append(_make())
    return Path(_homes[0].name)


def remove_abandoned() -> None:
    """Remove the directories of processes that were killed before they could clean up.

    A process holds a lock on its directory as long as it lives. pytest-xdist and time-outs kill processes.
    """
    for path in _MEMORY.glob(f"{_PREFIX}*"):
        if (descriptor := _lock(path)) is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(descriptor)


def _make() -> tempfile.TemporaryDirectory[str]:
    while True:
        made = tempfile.TemporaryDirectory(dir=_MEMORY, prefix=_PREFIX, ignore_cleanup_errors=True)
        # Never closed. Another process may have taken the new directory for an abandoned one before it was locked.
        if _lock(Path(made.name)) is not None and Path(made.name).exists():
            return made


def _lock(path: Path) -> int | None:
    """Return a descriptor that holds a directory's lock; None if another process holds it or the directory is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor

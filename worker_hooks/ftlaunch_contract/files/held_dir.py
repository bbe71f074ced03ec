"""Directories that exist for the processes that hold them. Standard library only.

A holder has an flock on the directory itself, which the kernel drops at the holder's end, however the holder ends. So a
directory is abandoned exactly if the lock can be had: unlike a pid, that is true in every PID namespace.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path


def hold(directory: Path, make: Callable[[], None], *, shared: bool = False) -> int:
    """Hold a directory with the descriptor that is returned, until that is closed. Raises OSError.

    make: makes the directory where it is missing; whoever takes the directory for abandoned may delete it once more.
    shared: several processes hold it.
    """
    while True:
        make()
        try:
            fd = _open(directory)
        except FileNotFoundError:
            continue
        fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        if _is_at(directory, fd):
            return fd
        os.close(fd)


def claim_abandoned(directory: Path) -> int | None:
    """Hold a directory that no process holds, to delete it; None where one does, or where it is gone."""
    try:
        fd = _open(directory)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    if _is_at(directory, fd):
        return fd
    os.close(fd)
    return None


def _open(directory: Path) -> int:
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)


def _is_at(directory: Path, fd: int) -> bool:
    """Whether the directory has not been deleted since it was opened."""
    try:
        return os.path.samestat(directory.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def pid_namespace() -> int:
    """The number of this process's PID namespace: only within it does a pid name one process."""
    return Path("/proc/self/ns/pid").stat().st_ino

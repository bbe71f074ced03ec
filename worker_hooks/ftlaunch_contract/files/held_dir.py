"""Directories that exist for as long as some process holds them. Standard library only.

A holder has an flock on the directory itself, which the kernel drops at the holder's end, however the holder ends. So a
directory is abandoned exactly if the lock can be had. Unlike a test of a pid, this holds in every PID namespace.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path


def hold(directory: Path, make: Callable[[], None], *, shared: bool = False) -> int:
    """Make and hold a directory. It is held until the returned descriptor is closed.

    Args:
        directory: the directory.
        make: makes the directory where it is missing. It is called again if another process takes the directory for
            abandoned and deletes it before it is held.
        shared: several processes may hold the directory at a time.

    Raises:
        OSError: the directory cannot be opened, or `make` has failed.
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
    """Hold a directory that no process holds, in order to delete it.

    Returns:
        The descriptor that holds it; None where another process holds the directory, or it is gone.
    """
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
    """Whether the directory behind `fd` still lies at this path."""
    try:
        return os.path.samestat(directory.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def pid_namespace() -> int:
    """Return the number of this process's PID namespace. Only within one namespace does a pid identify a process."""
    return Path("/proc/self/ns/pid").stat().st_ino

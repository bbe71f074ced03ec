"""The memory directories of ranks without a supervisor: one for each process, named after it."""

from __future__ import annotations

import atexit
import os
import shutil
from contextlib import suppress
from pathlib import Path

from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import layout


def memory_dir(root: Path, pid: int, start_time: int) -> Path:
    """The memory directory of a process."""
    return root / f"alone-{pid}-{start_time}"


def sweep(root: Path) -> None:
    """Delete what processes that were killed have left."""
    for directory in root.glob("alone-*-*"):
        _, pid, start = directory.name.split("-")
        if protocol.process_start_time(int(pid)) != int(start):
            forget(directory)


def forget(directory: Path) -> None:
    """Delete a memory directory, and its slot on storage. Two processes may delete one at the same time."""
    with suppress(OSError):
        layout.remove_slots(directory)
    shutil.rmtree(directory, ignore_errors=True)


def forget_at_exit(root: Path, directory: Path) -> None:
    """Delete a memory directory when this process ends (not a process that it forks), and `root` after the last one."""
    atexit.register(_forget_own, root, directory, os.getpid())


def _forget_own(root: Path, directory: Path, pid: int) -> None:
    if os.getpid() == pid:
        forget(directory)
        with suppress(OSError):
            root.rmdir()

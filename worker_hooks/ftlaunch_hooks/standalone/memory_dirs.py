"""The memory directories of ranks without a supervisor: one for each process, named after it and held by it."""

from __future__ import annotations

import atexit
import os
import shutil
from contextlib import suppress
from pathlib import Path

from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.files import held_dir
from ftlaunch_contract.files.private_dir import make_private
from ftlaunch_contract.pages.page import Page


class ProcessMemory:
    """The memory directory of this process, where all ranks are on one node."""

    def __init__(self, root: Path) -> None:
        """Make and hold it, until this process ends; then it is deleted. Raises NotPrivate or OSError."""
        self._root = root
        self.directory = memory_dir(root, os.getpid(), protocol.own_start_time())
        forget_at_exit(root, self.directory)
        make(self.directory)
        sweep(root)

    def of(self, peer: Page) -> Path:
        """The directory of another rank of the node."""
        return memory_dir(self._root, peer.pid, peer.start_time)

    def job_over(self) -> None:
        """Nothing to do: the directory goes with the process in any case."""

    def leave_at_once(self) -> None:
        """This process ends, and no atexit function runs."""
        forget(self.directory)


def memory_dir(root: Path, pid: int, start_time: int) -> Path:
    """The memory directory of a process of this PID namespace."""
    return root / f"alone-{pid}-{start_time}-{held_dir.pid_namespace()}"


def make(directory: Path) -> None:
    """Make a memory directory, and hold it until this process ends. Raises NotPrivate or OSError."""
    fd = held_dir.hold(directory, lambda: make_private(directory))
    # a DataLoader's worker may outlive this process, and must not hold the directory for it
    os.register_at_fork(after_in_child=lambda: os.close(fd))


def sweep(root: Path) -> None:
    """Delete what processes that were killed have left."""
    for directory in root.glob("alone-*-*-*"):
        fd = held_dir.claim_abandoned(directory)
        if fd is not None:
            forget(directory)
            os.close(fd)


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

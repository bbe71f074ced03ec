"""Makes and deletes the memory directories of ranks without a supervisor.

Each process has one, which is named after the process and held (locked) by it, so that a directory whose process was
killed can be recognized and deleted. node_memory.py has the directories of nodes, used by jobs on several nodes.
"""

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
    """The memory directory of this process, for jobs whose ranks are all on one node."""

    def __init__(self, root: Path) -> None:
        """Make the directory in `root`, and hold it until this process ends and the directory is deleted.

        Directories that killed processes have left in `root` are deleted, too.

        Raises:
            NotPrivate: other users may write to the directory.
            OSError: the directory cannot be made.
        """
        self._root = root
        self.directory = memory_dir(root, os.getpid(), protocol.own_start_time())
        forget_at_exit(root, self.directory)
        make(self.directory)
        sweep(root)

    def of(self, peer: Page) -> Path:
        """Return the directory of another rank of the node."""
        return memory_dir(self._root, peer.pid, peer.start_time)

    def job_over(self) -> None:
        """Do nothing: the directory is deleted with the process in any case."""

    def leave_at_once(self) -> None:
        """Delete the directory now, because this process ends without its atexit functions."""
        forget(self.directory)


def memory_dir(root: Path, pid: int, start_time: int) -> Path:
    """Return the path of the memory directory of a process in this PID namespace."""
    return root / f"alone-{pid}-{start_time}-{held_dir.pid_namespace()}"


def make(directory: Path) -> None:
    """Make a memory directory, and hold it until this process ends. Raises NotPrivate, OSError."""
    fd = held_dir.hold(directory, lambda: make_private(directory))
    # A DataLoader's worker may outlive this process, and must not hold the directory.
    os.register_at_fork(after_in_child=lambda: os.close(fd))


def sweep(root: Path) -> None:
    """Delete the memory directories that killed processes have left in `root`."""
    for directory in root.glob("alone-*-*-*"):
        fd = held_dir.claim_abandoned(directory)
        if fd is not None:
            forget(directory)
            os.close(fd)


def forget(directory: Path) -> None:
    """Delete a memory directory and its slots on storage. Two processes may do that at the same time."""
    with suppress(OSError):
        layout.remove_slots(directory)
    shutil.rmtree(directory, ignore_errors=True)


def forget_at_exit(root: Path, directory: Path) -> None:
    """Delete a memory directory when this process ends, and `root` with the last directory in it.

    Forked children of this process delete nothing.
    """
    atexit.register(_forget_own, root, directory, os.getpid())


def _forget_own(root: Path, directory: Path, pid: int) -> None:
    if os.getpid() == pid:
        forget(directory)
        with suppress(OSError):
            root.rmdir()

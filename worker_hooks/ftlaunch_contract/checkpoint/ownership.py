"""The right of one job to save to a checkpoint directory. Standard library only.

The supervisor takes it for its job; without a supervisor rank 0 does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from ftlaunch_contract.checkpoint import foreign, retention
from ftlaunch_contract.files.dirlock import CHECKPOINT_LOCK, DirLock, Holder


class Custody:
    """Holds the lock of a checkpoint directory, which is made where it is missing."""

    def __init__(self, directory: Path, wait: Callable[[int], None], say: Callable[[str], None],
                 gone: Holder | None = None) -> None:  # fmt: skip
        """Make the directory where it is missing, lock it, and remove what interrupted saves have left.

        Args:
            directory: the checkpoint directory.
            wait: called with a pid before waiting for the saver of a job that is gone.
            say: called with sentences for the user.
            gone: a process that does no more with the directory, as `DirLock` takes it.

        Raises:
            Locked: another job saves there.
            ForeignCheckpoints: another program saves there.
            OSError: the directory cannot be made or locked. After any of these errors, nothing new is left behind.
        """
        foreign.refuse_directory(directory)
        self.unfinished: list[int] = []  # steps whose checkpoints an interrupted save or deletion has left
        self._lock: DirLock | None = None
        self._made = make_dirs(directory)
        try:
            self._lock = DirLock(directory, wait, name=CHECKPOINT_LOCK, gone=gone)
        except BaseException:
            remove_dirs(self._made)
            raise
        if self._lock.warning:
            say(self._lock.warning)
        for step, note in retention.clear_unfinished(directory):
            self.unfinished.append(step)
            say(note or f"removed what an interrupted save or deletion has left of the checkpoint of step {step}")

    @property
    def fds(self) -> list[int]:
        """Return the lock's descriptor, which a saver inherits so that it holds the lock, too."""
        return [] if self._lock is None else [self._lock.fd]

    def forsake_in_children(self) -> None:
        """Make forked children give up the lock: a DataLoader's workers may outlive this process."""
        os.register_at_fork(after_in_child=self._forsake)

    def _forsake(self) -> None:
        if self._lock is not None:
            self._lock.forsake()
            self._lock = None

    def leave(self) -> None:
        """Give the directory back, and remove it again if this object made it and nothing was saved."""
        if self._lock is not None:
            with contextlib.suppress(OSError):  # the directory may be read-only now; the lock is released in any case
                self._lock.path.unlink(missing_ok=True)
            self._lock.release()
            self._lock = None
        remove_dirs(self._made)


def make_dirs(path: Path) -> list[Path]:
    """Make a directory and its missing parents; return those that were made, outermost first. Raises OSError."""
    missing = [directory for directory in (path, *path.parents) if not directory.exists()][::-1]
    for directory in missing:
        directory.mkdir(exist_ok=True)
    return missing


def remove_dirs(made: list[Path]) -> None:
    """Remove those of the directories that `make_dirs` has made which are empty."""
    for directory in reversed(made):
        with contextlib.suppress(OSError):
            directory.rmdir()

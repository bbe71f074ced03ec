"""One user of a directory at a time: an flock, which the kernel drops with its last holder. Standard library only.

The run dir and the memory directory of a job are locked by its supervisor; a checkpoint directory by whoever saves
to it, which without a supervisor is rank 0.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from ftlaunch_contract.files.held_dir import pid_namespace
from ftlaunch_contract.protocol import process_start_time

LOCK = "lock"  # in a run dir and in a memory directory
CHECKPOINT_LOCK = ".ftlaunch.lock"  # in a checkpoint directory, where others' files may lie too
_RETRY = 0.02  # seconds between tries for a lock that a dead supervisor's saver holds
_WIDTH = 128  # bytes of the note that says who holds it
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Locked(Exception):
    """Another supervisor or job works in this directory, or the saver of one that is gone."""

    def __init__(self, path: Path, holder: int, alive: bool, where: str) -> None:
        """path: of the lock's file. where: " on HOST", when the holder runs on another machine."""
        what = "job" if path.name == CHECKPOINT_LOCK else "supervisor"
        who = f"a running {what}" if alive else f"the saver of a {what} that is gone"
        super().__init__(f"{path.parent} is in use by {who} (pid {holder}{where})")
        self.holder = holder


class NoLocks(OSError):
    """The file system of a directory has no locks."""


class DirLock:
    """An flock on a file in a directory. The end of its last holder releases it; a reused pid is no holder."""

    def __init__(
        self,
        directory: Path,
        wait: Callable[[int], None] | None = None,
        patience: float = 2.0,
        name: str = LOCK,
    ) -> None:
        """Take the lock.

        Where it is held for a supervisor that is dead (its saver finishes a save), wait for that, after
        calling `wait(holder)`; without `wait` for `patience` seconds at most. Raises Locked when the holder
        lives or the patience is over, NoLocks where the file system has none, or OSError.
        """
        give_up = float("inf") if wait is not None else time.monotonic() + patience
        self.path = directory / name
        while True:
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                self._take(wait, give_up)
            except BaseException:
                os.close(self.fd)
                raise
            if self.path.exists() and self.path.stat().st_ino == os.fstat(self.fd).st_ino:
                break
            os.close(self.fd)  # its last holder has removed the file since: take the lock of the new file
        self._sign()

    def _sign(self) -> None:
        """Write the holder into the lock's file. On a full disk the file stays empty; the lock holds all the same."""
        note = f"{os.getpid()} {process_start_time(os.getpid())} {socket.gethostname()} {pid_namespace()}"
        try:
            os.pwrite(
                self.fd, note.ljust(_WIDTH - 1).encode()[: _WIDTH - 1] + b"\n", 0
            )  # not truncated: old bytes keep their room
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                os.close(self.fd)
                raise

    def _take(self, wait: Callable[[int], None] | None, give_up: float) -> None:
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                holder, start, host, namespace = self._holder()
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    raise NoLocks(error.errno, error.strerror, str(self.path)) from error
                raise
            # Read in every round: a holder that has just taken the lock may not have written its name yet.
            elsewhere = host not in ("", socket.gethostname())
            hidden = elsewhere or namespace not in (
                "",
                str(pid_namespace()),
            )  # who holds it is said, not whether it lives
            alive = holder != 0 and (hidden or process_start_time(holder) == start)
            if alive or time.monotonic() >= give_up:
                raise Locked(self.path, holder, alive, f" on {host}" if elsewhere else "")
            if holder and wait is not None:
                wait(holder)
                wait = None
            time.sleep(_RETRY)

    def _holder(self) -> tuple[int, int, str, str]:
        """Pid and start time of the holder, its host and its PID namespace; a text is empty where it is not known."""
        words = os.pread(self.fd, _WIDTH, 0).split()
        if len(words) not in (2, 3, 4) or not all(word.isdigit() for word in words[:2]):
            return 0, -1, "", ""
        host, namespace = (word.decode(errors="replace") for word in [*words[2:], b"", b""][:2])
        return int(words[0]), int(words[1]), host, namespace

    def release(self) -> None:
        """Give the lock back; processes that inherited the descriptor go on holding it."""
        os.close(self.fd)

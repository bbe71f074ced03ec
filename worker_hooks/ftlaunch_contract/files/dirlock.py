"""One user of a directory at a time: an flock, which the kernel drops with its last holder. Standard library only.

The run dir and the memory directory of a job are locked by its supervisor; a checkpoint directory by whoever saves
to it, which without a supervisor is rank 0.

Where the file system of a directory has no locks (Lustre without -o flock, some FUSE), a file in the user's memory is
locked instead: it keeps out whoever works for this user on this machine, and nobody else.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ftlaunch_contract.files.held_dir import pid_namespace
from ftlaunch_contract.files.private_dir import NotPrivate, make_private
from ftlaunch_contract.protocol import memory_root, process_start_time

LOCK = "lock"  # in a run dir and in a memory directory
CHECKPOINT_LOCK = ".ftlaunch.lock"  # in a checkpoint directory, where others' files may lie too
_RETRY = 0.02  # seconds between tries for a lock that a dead supervisor's saver holds
_GONE = 0.5  # seconds in which a process that has been replaced gives its locks back, if it can
_WIDTH = 128  # bytes of the note that says who holds it
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # what flock says where a file system has none
_STAND_INS = "@locks"  # folder in the user's memory; no job id has an @


class Locked(Exception):
    """Another supervisor or job works in this directory, or the saver of one that is gone."""

    def __init__(self, path: Path, holder: int, alive: bool, where: str) -> None:
        """path: of the lock's file. where: " on HOST", when the holder runs on another machine."""
        what = "job" if path.name == CHECKPOINT_LOCK else "supervisor"
        who = f"a running {what}" if alive else f"the saver of a {what} that is gone"
        super().__init__(f"{path.parent} is in use by {who} (pid {holder}{where})")
        self.holder = holder


Holder = tuple[int, int]
"""Pid and start time."""


class DirLock:
    """An flock on a file in a directory. The end of its last holder releases it; a reused pid is no holder."""

    def __init__(
        self,
        directory: Path,
        wait: Callable[[int], None] | None = None,
        patience: float = 2.0,
        name: str = LOCK,
        gone: Holder | None = None,
    ) -> None:
        """Take the lock.

        gone: of a process that is known to do nothing more with what this lock guards, and may hold it for long: on a
        machine that is lost, say. Its lock's file is replaced, unless it gives the lock back in half a second.

        Where it is held for a supervisor that is dead (its saver finishes a save), wait for that, after
        calling `wait(holder)`; without `wait` for `patience` seconds at most. Raises Locked when the holder
        lives or the patience is over, or OSError.
        """
        give_up = float("inf") if wait is not None else time.monotonic() + patience
        self._gone, self._gone_until = gone, time.monotonic() + _GONE
        self.path = directory / name
        self._stand_in: Path | None = None
        while True:
            # the note that says who holds the lock, and the file that is locked: most often the same
            self._note = self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                self._take(wait, give_up)
                if _is_at(self.path, self._note) and (self._stand_in is None or _is_at(self._stand_in, self.fd)):
                    break
            except BaseException:
                self.forsake()
                raise
            self.forsake()  # its last holder has removed the file since: take the lock of the new file
        self.warning = "" if self._stand_in is None else self._unguarded()
        """a sentence for people on what the lock does not guard against"""
        self._sign()

    def _sign(self) -> None:
        """Write the holder into the lock's file. On a full disk the file stays empty; the lock holds all the same."""
        note = f"{os.getpid()} {process_start_time(os.getpid())} {socket.gethostname()} {pid_namespace()}"
        try:
            os.pwrite(
                self._note, note.ljust(_WIDTH - 1).encode()[: _WIDTH - 1] + b"\n", 0
            )  # not truncated: old bytes keep their room
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                self.forsake()
                raise

    def _take(self, wait: Callable[[int], None] | None, give_up: float) -> None:
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                holder, start, host, namespace = self._holder()
            except OSError as error:
                if self.fd != self._note or error.errno not in _NO_LOCKS:
                    raise
                self._open_stand_in()
                continue
            # Read in every round: a holder that has just taken the lock may not have written its name yet.
            elsewhere = host not in ("", socket.gethostname())
            hidden = elsewhere or namespace not in (
                "",
                str(pid_namespace()),
            )  # who holds it is said, not whether it lives
            if (holder, start) == self._gone:
                if time.monotonic() >= self._gone_until:
                    self.path.unlink(missing_ok=True)
                    return  # the caller sees that the file is gone, and makes another
                time.sleep(_RETRY)
                continue
            alive = holder != 0 and (hidden or process_start_time(holder) == start)
            if alive or time.monotonic() >= give_up:
                raise Locked(self.path, holder, alive, f" on {host}" if elsewhere else "")
            if holder and wait is not None:
                wait(holder)
                wait = None
            time.sleep(_RETRY)

    def _holder(self) -> tuple[int, int, str, str]:
        return _signed(self._note)

    # --- where the file system has no locks -----------------------------------------------------------------------

    def _open_stand_in(self) -> None:
        """Make the file in memory that is locked instead; its name is the directory's device and inode."""
        found = self.path.parent.stat()
        folder = memory_root(os.getuid()) / _STAND_INS
        self._stand_in = folder / f"{found.st_dev}-{found.st_ino}-{self.path.name}"
        while True:
            try:
                make_private(folder)
            except NotPrivate as error:
                raise OSError(errno.ENOLCK, f"no locks on this file system, and none in memory: {error}") from error
            with suppress(FileNotFoundError):  # another holder has just removed the folder: make it again
                self.fd = os.open(self._stand_in, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                return

    def _unguarded(self) -> str:
        """To be called before the note is signed: it names the last holder that has not given the lock back."""
        holder, start, host, namespace = self._holder()
        here = (host, namespace) == (socket.gethostname(), str(pid_namespace()))
        ask = "see to it that no other machine works there at the same time"
        if holder and not (here and process_start_time(holder) != start):
            ask += f": pid {holder} on {host or 'some machine'} has not given it back, and may live"
        found = f"{self.path.parent} is on a file system without locks"
        return f"warning: {found}: only your own jobs on this machine are kept out; {ask}"

    # --- its end ----------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Give the lock back; processes that inherited the descriptor go on holding it."""
        os.close(self.fd)
        if self._stand_in is None:
            return
        if (claimed := _claim(self._stand_in)) is not None:
            with suppress(OSError):  # the directory may be read-only now
                os.ftruncate(self._note, 0)  # on another machine nothing else says that the lock was given back
            _remove(self._stand_in, claimed)
        os.close(self._note)

    def forsake(self) -> None:
        """Close the descriptors of this process only: a child of the holder does not hold the lock then."""
        for fd in {self.fd, self._note}:
            os.close(fd)


def living_holder(directory: Path) -> Holder | None:
    """The process that has signed the lock of a directory last; None where it is gone, or cannot be seen from here."""
    try:
        note = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        holder, start, host, namespace = _signed(note)
    finally:
        os.close(note)
    seen = host in ("", socket.gethostname()) and namespace in ("", str(pid_namespace()))
    return (holder, start) if seen and holder and process_start_time(holder) == start else None


def _signed(note: int) -> tuple[int, int, str, str]:
    """Pid and start time of the holder, its host and its PID namespace; a text is empty where it is not known."""
    words = os.pread(note, _WIDTH, 0).split()
    if len(words) not in (2, 3, 4) or not all(word.isdigit() for word in words[:2]):
        return 0, -1, "", ""
    host, namespace = (word.decode(errors="replace") for word in [*words[2:], b"", b""][:2])
    return int(words[0]), int(words[1]), host, namespace


def remove_stand_ins(memory: Path) -> None:
    """Remove what killed holders have left in a user's memory where file systems have no locks."""
    for path in (memory / _STAND_INS).glob("*"):
        if (claimed := _claim(path)) is not None:
            _remove(path, claimed)


def _claim(path: Path) -> int | None:
    """Lock a file in memory that no process holds; None where one does, or where the file is gone."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(path, fd):
            return fd
    os.close(fd)
    return None


def _remove(path: Path, claimed: int) -> None:
    """Remove a file in memory while it is locked, and its folders where they are empty."""
    path.unlink()
    os.close(claimed)
    with suppress(OSError):
        path.parent.rmdir()
        path.parent.parent.rmdir()


def _is_at(path: Path, fd: int) -> bool:
    """Whether a file has not been deleted since it was opened."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False

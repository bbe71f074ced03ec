"""A lock that gives one job at a time the use of a directory. Standard library only.

The lock is an flock, which the kernel drops when its last holder ends. The supervisor of a job locks the run dir and
the memory directory; whoever saves to a checkpoint directory locks that, which without a supervisor is rank 0.

Some file systems have no locks (Lustre without -o flock, some FUSE). For a directory on one of those, a file in the
user's memory is locked instead, the stand-in. That keeps out processes of this user on this machine, and nobody else.
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
_RETRY_SECONDS = 0.02  # between tries for a lock that a dead supervisor's saver holds
_GONE_SECONDS = 0.5  # in which a replaced process gives its locks back, if it can
_NOTE_BYTES = 128  # size of the note that names the holder
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # errors of flock on a file system without locks
_STAND_INS = "@locks"  # folder in the user's memory; no job id has an @


class Locked(Exception):
    """A directory is in use by another supervisor or job, or by the saver of one that is gone."""

    def __init__(self, path: Path, holder: int, alive: bool, where: str) -> None:
        """Word the message.

        Args:
            path: the lock's file.
            holder: pid of the process that holds the lock; 0 where the pid is not known.
            alive: whether the holder itself runs; otherwise only its saver does.
            where: " on HOST" where the holder runs on another machine, else empty.
        """
        what = "job" if path.name == CHECKPOINT_LOCK else "supervisor"
        who = f"a running {what}" if alive else f"the saver of a {what} that is gone"
        super().__init__(f"{path.parent} is in use by {who} (pid {holder}{where})")
        self.holder = holder


Holder = tuple[int, int]
"""pid and start time of a process"""


class DirLock:
    """An flock on a file in a directory. Its last holder's end releases the lock; a reused pid is never a holder."""

    def __init__(
        self,
        directory: Path,
        wait: Callable[[int], None] | None = None,
        patience: float = 2.0,
        name: str = LOCK,
        gone: Holder | None = None,
    ) -> None:
        """Take the lock, and wait for a dead supervisor's saver that still holds it.

        Args:
            directory: the directory to lock; it must exist.
            wait: called once with the holder's pid before waiting for a dead supervisor's saver; with `wait` there is
                no limit on the time.
            patience: seconds to wait for such a saver where `wait` is None.
            name: name of the lock's file in the directory.
            gone: a process that is known to do nothing more with the directory but may hold the lock for long, on a
                machine that is lost, say. Its lock's file is replaced unless the lock is given back in half a second.

        Raises:
            Locked: the holder lives, or the patience is over.
            OSError: the lock's file cannot be made, or there are no locks at all.
        """
        give_up = float("inf") if wait is not None else time.monotonic() + patience
        self._gone = gone
        self._gone_until = time.monotonic() + _GONE_SECONDS
        self.path = directory / name
        self._stand_in: Path | None = None
        while True:
            # The note that names the holder, and the file that is locked. They differ where there is a stand-in.
            self._note = self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                self._lock_file(wait, give_up)
                if _is_at(self.path, self._note) and (self._stand_in is None or _is_at(self._stand_in, self.fd)):
                    break
            except BaseException:
                self.forsake()
                raise
            self.forsake()  # the last holder has removed the file meanwhile: lock the new one
        self.warning = "" if self._stand_in is None else self._unguarded()
        """a sentence for people on what the lock does not protect against; empty for a real lock"""
        self._sign()

    def _sign(self) -> None:
        """Write the holder into the lock's file. On a full disk the file stays empty; the lock holds all the same."""
        note = f"{os.getpid()} {process_start_time(os.getpid())} {socket.gethostname()} {pid_namespace()}"
        try:
            # The file is not truncated first, so that a full disk still has room for the same number of bytes.
            os.pwrite(self._note, note.ljust(_NOTE_BYTES - 1).encode()[: _NOTE_BYTES - 1] + b"\n", 0)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                self.forsake()
                raise

    def _lock_file(self, wait: Callable[[int], None] | None, give_up: float) -> None:
        """Lock the open file, or return after the file of a replaced holder was removed: the caller opens another."""
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                holder, start, host, namespace = _signed(self._note)
            except OSError as error:
                if self.fd != self._note or error.errno not in _NO_LOCKS:
                    raise
                self._open_stand_in()
                continue
            # The note is read in every round: a holder that has just taken the lock may not have written it yet.
            elsewhere = host not in ("", socket.gethostname())
            # A process on another machine or in another PID namespace can be named, but not looked at.
            hidden = elsewhere or namespace not in ("", str(pid_namespace()))
            if (holder, start) == self._gone:
                if time.monotonic() >= self._gone_until:
                    self.path.unlink(missing_ok=True)
                    return  # the caller sees that the file is gone
                time.sleep(_RETRY_SECONDS)
                continue
            alive = holder != 0 and (hidden or process_start_time(holder) == start)
            if alive or time.monotonic() >= give_up:
                raise Locked(self.path, holder=holder, alive=alive, where=f" on {host}" if elsewhere else "")
            if holder and wait is not None:
                wait(holder)
                wait = None
            time.sleep(_RETRY_SECONDS)

    # --- where the file system has no locks -----------------------------------------------------------------------

    def _open_stand_in(self) -> None:
        """Open the stand-in to lock, making it where needed; its name is the directory's device and inode."""
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
        """Return the warning about a stand-in. Call before signing: the old note names a holder that may still live."""
        holder, start, host, namespace = _signed(self._note)
        here = (host, namespace) == (socket.gethostname(), str(pid_namespace()))
        ask = "see to it that no other machine works there at the same time"
        if holder and not (here and process_start_time(holder) != start):
            ask += f": pid {holder} on {host or 'some machine'} has not given it back, and may live"
        found = f"{self.path.parent} is on a file system without locks"
        return f"warning: {found}: only your own jobs on this machine are kept out; {ask}"

    # --- its end ----------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Give the lock back. Processes that inherited the descriptor go on holding a real lock."""
        os.close(self.fd)
        if self._stand_in is None:
            return
        if (claimed := _claim(self._stand_in)) is not None:
            with suppress(OSError):  # the directory may be read-only now
                os.ftruncate(self._note, 0)  # the only sign on other machines that the lock was given back
            _remove(self._stand_in, claimed)
        os.close(self._note)

    def forsake(self) -> None:
        """Close the descriptors in this process without unlocking, in a forked child that must not hold the lock."""
        for fd in {self.fd, self._note}:
            os.close(fd)


def living_holder(directory: Path) -> Holder | None:
    """Return the process that signed the lock of a directory last.

    None where the process is gone, or runs on another machine or in another PID namespace and cannot be looked at.
    """
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
    """Return the holder's pid, start time, host and PID namespace from a note; an unknown text is empty."""
    words = os.pread(note, _NOTE_BYTES, 0).split()
    if len(words) not in (2, 3, 4) or not all(word.isdigit() for word in words[:2]):
        return 0, -1, "", ""
    host, namespace = (word.decode(errors="replace") for word in [*words[2:], b"", b""][:2])
    return int(words[0]), int(words[1]), host, namespace


def remove_stand_ins(memory: Path) -> None:
    """Remove the stand-ins that killed holders have left in a user's memory."""
    for path in (memory / _STAND_INS).glob("*"):
        if (claimed := _claim(path)) is not None:
            _remove(path, claimed)


def _claim(path: Path) -> int | None:
    """Lock a stand-in that no process holds and return its descriptor; None where a process holds it or it is gone."""
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
    """Remove a stand-in that `_claim` has locked, and its folders where they are empty."""
    path.unlink()
    os.close(claimed)
    with suppress(OSError):
        path.parent.rmdir()
        path.parent.parent.rmdir()


def _is_at(path: Path, fd: int) -> bool:
    """Whether the file behind `fd` still lies at `path`."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False

"""The file in which a voter keeps its record: on the disk of its own machine, written before the voter answers."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from ftlaunch.history.runs import CLAIMS
from ftlaunch.nodes.channel.votes.records import VoterFile, decode, encode
from ftlaunch_contract.files import atomic
from ftlaunch_contract.files.regular_file import open_regular

_NAME = "votes.json"
_LOCK = "votes.lock"
_MOST_BYTES = 1 << 16


def this_boot() -> str:
    """Return a name for the boot of this machine. Raises OSError."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class VoterFiles:
    """The file of one machine's voter, and the lock of the process that writes it."""

    def __init__(self, run_dir: Path) -> None:
        """Name the files. run_dir: that of the job on this machine."""
        self._folder = run_dir / CLAIMS
        self._path = self._folder / _NAME
        self._lock: int | None = None

    def lock(self) -> bool:
        """Become the one process that writes the file. Return False if there is one already. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self._lock = lock
        return True

    def unlock(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read(self) -> VoterFile | None:
        """Return what the file holds, or None if there is none.

        Raises:
            OSError: the disk does not answer, or the file is damaged.
        """
        try:
            with open_regular(self._path) as file:
                return decode(file.read(_MOST_BYTES))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise OSError(errno.EIO, f"the file is damaged: {error}", str(self._path)) from error

    def write(self, content: VoterFile) -> None:
        """Replace the file, and return once it is on the disk. Raises OSError."""
        atomic.replace_durable(self._path, encode(content))

    def forget(self) -> bool:
        """Remove the file. Return False if a voter is running. Raises OSError."""
        if not self.lock():
            return False
        try:
            self._path.unlink(missing_ok=True)
        finally:
            self.unlock()
        return True

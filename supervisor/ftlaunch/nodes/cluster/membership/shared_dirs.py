"""Finds out which of the job's directories a node shares with the head: the head leaves a random word in them.

A node whose run dir is its own must neither take part in the election of a head there, nor expect that the head reads
its logs; a node whose checkpoint directory is its own would write its part of a checkpoint where nobody looks for it.
The head writes and removes the word; `SharedDirs` looks for it in the agent's event loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from ftlaunch_contract.files import atomic
from ftlaunch_contract.files.regular_file import open_regular

NAME = ".shared"
PATIENCE_SECONDS = 5.0
"""seconds within which a file of another machine must appear; network file systems cache directories"""
_FROZEN_SECONDS = 1.0  # between two looks from which on this node counts as having been frozen
_LONGEST_WORD = 100  # bytes
_OF_ONE_MACHINE = frozenset(("btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"))
"""types of file systems that never show files of another machine"""


def write(directories: Sequence[Path], word: str) -> None:
    """Write the word into each directory. Raises OSError."""
    for directory in directories:
        atomic.replace_durable(directory / NAME, word.encode())


def forget(directories: Sequence[Path]) -> None:
    """Remove the word from each directory, because the job is over."""
    for directory in directories:
        with contextlib.suppress(OSError):
            (directory / NAME).unlink()


def is_of_one_machine(directory: Path) -> bool:
    """Return whether the file system of a directory cannot be shared with another machine."""
    mounts = psutil.disk_partitions(all=True)
    resolved = directory.resolve()
    over = [mount for mount in mounts if resolved.is_relative_to(mount.mountpoint)]
    # The last of several mounts at one place hides the earlier ones.
    innermost = max(reversed(over), key=lambda mount: len(mount.mountpoint), default=None)
    return innermost is not None and innermost.fstype in _OF_ONE_MACHINE


class SharedDirs:
    """A node's search for the word of the head.

    A directory that was proven once stays proven for later heads, unless it lies on a file system of this machine
    alone: then the head that has proven it was on this machine, and the next one may be elsewhere.
    """

    def __init__(
        self, directories: Sequence[Path], is_of_one_machine: Callable[[Path], bool] = is_of_one_machine
    ) -> None:
        """Search in `directories`, once `begin` has named the word.

        Args:
            directories: the directories.
            is_of_one_machine: whether a directory's file system shows no files of other machines.
        """
        self._is_of_one_machine = is_of_one_machine
        self._all = tuple(directories)
        self._unknown = list(directories)  # directories in which the word was not found yet
        self._apart: list[Path] = []
        self._word = ""
        self._polled_at = 0.0
        self.until = 0.0
        """the moment by which the word must be found, in monotonic seconds"""

    def begin(self, word: str, now: float) -> None:
        """Search for the word that the head has named, from `now` on, wherever nothing is proven for it."""
        proven = [directory for directory in self._all if self.is_shared(directory)]
        self._unknown += [*self._apart, *filter(self._is_of_one_machine, proven)]
        self._apart = []
        self._word = word
        self.until = now + PATIENCE_SECONDS
        self._polled_at = now

    @property
    def are_known(self) -> bool:
        """Whether each directory is known to be shared with the head, or not to be."""
        return not self._unknown

    @property
    def apart(self) -> Sequence[Path]:
        """The directories that are not the head's."""
        return self._apart

    def is_shared(self, directory: Path) -> bool:
        """Return whether a directory is proven to be the head's, too."""
        return directory not in self._unknown and directory not in self._apart

    def is_time_over(self, now: float) -> bool:
        """Look for the word, and return whether a directory has not shown it in time. `until` is the end of that time.

        The time begins again after this node was frozen, because another head may have written a word that this node
        does not know yet. It is over at once where no file can come late: on a file system of this machine alone.
        """
        if not self._word:
            return False
        if now > self._polled_at + _FROZEN_SECONDS:
            self.until = now + PATIENCE_SECONDS
        self._polled_at = now
        found = {directory: _word_in(directory) for directory in self._unknown}
        self._unknown = [directory for directory in self._unknown if found[directory] != self._word]
        # Any other word means that a head writes here, which this node may not have met yet.
        without_any = [directory for directory in self._unknown if found[directory] is None]
        if without_any == self._unknown and all(map(self._is_of_one_machine, self._unknown)):
            self.until = min(self.until, now)
        return bool(self._unknown) and now >= self.until

    def give_up(self) -> None:
        """Take the directories that have not shown the word for directories of this node alone."""
        self._apart += self._unknown
        self._unknown = []


def _word_in(directory: Path) -> str | None:
    """Return the word in a directory; None if there is none, or if it cannot be read."""
    try:
        with open_regular(directory / NAME) as file:
            return file.read(_LONGEST_WORD).decode(errors="replace")
    except OSError:
        return None

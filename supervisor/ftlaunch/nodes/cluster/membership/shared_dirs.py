"""Proves that nodes share the job's directories: the head writes a random word there, and each node must find it.

A node with a run dir of its own would write its part of a checkpoint where nobody looks for it. The head writes and
removes the word; `SharedDirs` looks for it in the agent's event loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from ftlaunch_contract.files import atomic
from ftlaunch_contract.files.regular_file import open_regular

NAME = ".shared"
PATIENCE_SECONDS = 5.0
"""seconds within which a file of another machine must appear; network file systems cache directories"""
NOT_SEEN = "the word that the head has left there is not to be seen here"
_FROZEN_SECONDS = 1.0  # between two searches from which on this node counts as having been frozen
_LONGEST_WORD = 100  # bytes


def write(directories: Sequence[Path], word: str) -> None:
    """Write the word into each directory. Raises OSError."""
    for directory in directories:
        atomic.replace_durable(directory / NAME, word.encode())


def forget(directories: Sequence[Path]) -> None:
    """Remove the word from each directory, because the job is over."""
    for directory in directories:
        with contextlib.suppress(OSError):
            (directory / NAME).unlink()


class SharedDirs:
    """A node's search for the word of the head. A directory that was proven once stays proven for later heads."""

    def __init__(self, directories: Sequence[Path]) -> None:
        """Search in `directories`, once `begin` has named the word."""
        self._missing = list(directories)  # directories in which the word was not found yet
        self._word = ""
        self._searched_at = 0.0
        self.until = 0.0
        """the moment by which the word must be found, in monotonic seconds"""

    def begin(self, word: str, now: float) -> None:
        """Search for the word that the head has named, from `now` on."""
        self._word = word
        self.until = now + PATIENCE_SECONDS
        self._searched_at = now

    @property
    def proven(self) -> bool:
        """Whether all directories are proven to be shared."""
        return not self._missing

    def search(self, now: float) -> Path | None:
        """Search for the word.

        The time begins again after this node was frozen, because another head may have written a word that this node
        does not know yet.

        Returns:
            A directory that has not shown the word in time, or None.
        """
        if not self._word:
            return None
        if now > self._searched_at + _FROZEN_SECONDS:
            self.until = now + PATIENCE_SECONDS
        self._searched_at = now
        self._missing = [directory for directory in self._missing if not self._is_in(directory)]
        return self._missing[0] if self._missing and now > self.until else None

    def _is_in(self, directory: Path) -> bool:
        try:
            with open_regular(directory / NAME) as file:
                return file.read(_LONGEST_WORD) == self._word.encode()
        except OSError:
            return False

"""Whether nodes share the job's directories: the head writes a random word there, and each node must find it.

A node that has its own run dir would write its part of a checkpoint where nobody looks for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from ftlaunch_contract.files import atomic
from ftlaunch_contract.files.regular_file import open_regular

NAME = ".shared"
PATIENCE = 5.0
"""seconds in which a file of another machine must show: network file systems keep what they know of a directory"""
NOT_SEEN = "the word that the head has left there is not to be seen here"
_GAP = 1.0  # seconds between two looks, after which this node must have been stopped
_LONGEST = 100  # bytes


def write(directories: Sequence[Path], word: str) -> None:
    """Write the word. Raises OSError."""
    for directory in directories:
        atomic.replace_durable(directory / NAME, word.encode())


def forget(directories: Sequence[Path]) -> None:
    """The job is over."""
    for directory in directories:
        with contextlib.suppress(OSError):
            (directory / NAME).unlink()


class SharedDirs:
    """What a node knows of it. It looks once: what was shared stays shared, whichever head asks."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._missing = list(directories)  # those in which the word was not found yet
        self._word = ""
        self._looked = 0.0
        self.until = 0.0
        """the moment by which it must have been found"""

    def begin(self, word: str, now: float) -> None:
        """The head has named its word."""
        self._word = word
        self.until = now + PATIENCE
        self._looked = now

    @property
    def proven(self) -> bool:
        """Whether all of them are shared."""
        return not self._missing

    def look(self, now: float) -> Path | None:
        """Look for the word; returns a directory that has not shown it in its time.

        A node that was stopped meanwhile begins to look anew: another head may have left a word of its own, and this
        node does not know it yet.
        """
        if not self._word:
            return None
        if now > self._looked + _GAP:
            self.until = now + PATIENCE
        self._looked = now
        self._missing = [directory for directory in self._missing if not self._is_in(directory)]
        return self._missing[0] if self._missing and now > self.until else None

    def _is_in(self, directory: Path) -> bool:
        try:
            with open_regular(directory / NAME) as file:
                return file.read(_LONGEST) == self._word.encode()
        except OSError:
            return False

"""Limits a writer to so many bytes a second. Standard library only."""

from __future__ import annotations

import time
from collections.abc import Callable


class Bandwidth:
    """A bound on how fast bytes are written, until there is a reason to hurry."""

    def __init__(self, bytes_per_second: float, hurry: Callable[[float], bool]) -> None:
        """hurry: waits so many seconds for a reason to hurry; returns whether there is one."""
        self._rate: float | None = bytes_per_second
        self._hurry = hurry
        self._due = time.monotonic()  # when, at this rate, the bytes so far may have been written

    def spent(self, count: int) -> None:
        """`count` bytes were written: wait until more may be written. Time lost before is not made up for."""
        if self._rate is None:
            return
        now = time.monotonic()
        self._due = max(self._due, now) + count / self._rate
        if self._hurry(self._due - now):
            self._rate = None

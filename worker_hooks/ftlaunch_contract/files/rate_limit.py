"""Limits the bytes that a writer writes per second. Standard library only."""

from __future__ import annotations

import time
from collections.abc import Callable


class Bandwidth:
    """A limit on how fast bytes are written, which is lifted for good once there is a reason to hurry."""

    def __init__(self, bytes_per_second: float, hurry: Callable[[float], bool]) -> None:
        """Start with nothing written.

        Args:
            bytes_per_second: the limit.
            hurry: waits up to the given seconds, and returns True as soon as the limit should be lifted.
        """
        self._rate: float | None = bytes_per_second
        self._hurry = hurry
        self._due = time.monotonic()  # the earliest time at which the bytes so far may have been written

    def spent(self, count: int) -> None:
        """Account for `count` written bytes: wait until more may be written. Time lost before is not made up for."""
        if self._rate is None:
            return
        now = time.monotonic()
        self._due = max(self._due, now) + count / self._rate
        if self._hurry(self._due - now):
            self._rate = None

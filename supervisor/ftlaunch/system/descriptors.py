"""Waiting for one descriptor, whatever its number: select() refuses those of 1,024 and more."""

from __future__ import annotations

import errno
import select
import time
from typing import Protocol

_PAUSE = 0.01
"""seconds after which the kernel may have memory for a poll() again"""


class HasFileno(Protocol):
    """A socket, or anything else with a descriptor."""

    def fileno(self) -> int:
        """Return the descriptor."""


def is_readable(descriptor: int | HasFileno, seconds: float | None) -> bool:
    """Wait up to `seconds` (None: for ever); return whether something can be read, an end included. Raises OSError."""
    return _is_ready(descriptor, select.POLLIN, seconds)


def is_writable(descriptor: int | HasFileno, seconds: float | None) -> bool:
    """Wait up to `seconds` (None: for ever); return whether a write would not wait. Raises OSError."""
    return _is_ready(descriptor, select.POLLOUT, seconds)


def _is_ready(descriptor: int | HasFileno, events: int, seconds: float | None) -> bool:
    """A poll() that the kernel has no memory for is made again, for as long as there is time."""
    poll = select.poll()
    poll.register(descriptor, events)
    until = None if seconds is None else time.monotonic() + max(seconds, 0.0)
    while True:
        left = None if until is None else max(until - time.monotonic(), 0.0)
        try:
            return bool(poll.poll(None if left is None else left * 1000))
        except OSError as error:
            if error.errno != errno.ENOMEM or left == 0.0:
                raise
        time.sleep(_PAUSE if left is None else min(_PAUSE, left))

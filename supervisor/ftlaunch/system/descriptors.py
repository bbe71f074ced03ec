"""Waits for one descriptor with any number, unlike select(), which refuses numbers of 1,024 and more.

Also leads a descriptor nowhere once its reader is gone.
"""

from __future__ import annotations

import errno
import os
import select
import time
from typing import Protocol

_PAUSE_SECONDS = 0.01
"""seconds to wait before a poll() is retried for which the kernel had no memory"""


class HasFileno(Protocol):
    """A socket, or anything else with a descriptor."""

    def fileno(self) -> int:
        """Return the descriptor."""


def is_readable(descriptor: int | HasFileno, seconds: float | None) -> bool:
    """Wait until something can be read, the end of the stream included, or until `seconds` are over.

    Args:
        descriptor: the descriptor, or an object that has one.
        seconds: None waits for ever.

    Returns:
        Whether a read would not wait.

    Raises:
        OSError: poll() fails.
    """
    return _is_ready(descriptor, select.POLLIN, seconds)


def is_writable(descriptor: int | HasFileno, seconds: float | None) -> bool:
    """Wait until something can be written, or until `seconds` are over.

    Args:
        descriptor: the descriptor, or an object that has one.
        seconds: None waits for ever.

    Returns:
        Whether a write would not wait.

    Raises:
        OSError: poll() fails.
    """
    return _is_ready(descriptor, select.POLLOUT, seconds)


def _is_ready(descriptor: int | HasFileno, events: int, seconds: float | None) -> bool:
    """Poll for events. If the kernel has no memory for that (ENOMEM), retry as long as there is time."""
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
        time.sleep(_PAUSE_SECONDS if left is None else min(_PAUSE_SECONDS, left))


def lead_nowhere(descriptor: int) -> None:
    """Point a descriptor at /dev/null, because its reader is gone. What follows is written, and read by nobody."""
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)

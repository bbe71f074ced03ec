"""Waiting for one descriptor, whatever its number: select() refuses those of 1,024 and more."""

from __future__ import annotations

import select
from typing import Protocol


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
    poll = select.poll()
    poll.register(descriptor, events)
    return bool(poll.poll(None if seconds is None else max(seconds, 0.0) * 1000))

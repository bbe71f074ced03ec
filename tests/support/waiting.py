"""Waits for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

DEADLINE = 90.0  # seconds for one wait; generous, for a loaded machine

_SHORTEST_PAUSE = 0.01  # seconds between two looks
_LONGEST_PAUSE = 0.1
_PAUSE_PER_LOOK = 4  # a pause takes so many times as long as a look

T = TypeVar("T")


def wait_for(ready: Callable[[], T | None], what: str, seconds: float = DEADLINE) -> T:
    """Poll until `ready()` is truthy, and return the result; fail the test with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        begin = time.monotonic()
        if result := ready():
            return result
        end = time.monotonic()
        assert end < deadline, f"waited {seconds:.0f} s in vain for {what}"
        # Looking at all processes, or at a journal, takes milliseconds, which the job that is waited for needs, too.
        time.sleep(min(max(_SHORTEST_PAUSE, _PAUSE_PER_LOOK * (end - begin)), _LONGEST_PAUSE))

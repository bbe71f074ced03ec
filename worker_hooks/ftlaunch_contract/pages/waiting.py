"""Waits for a word of a shared page to change, by polling. Not for the hot path."""

from __future__ import annotations

import time
from collections.abc import Callable

_FIRST_PAUSE_SECONDS = 0.0002
_LONGEST_PAUSE_SECONDS = 0.005


def wait_until(ready: Callable[[], bool], deadline: float) -> bool:
    """Wait until `ready()` is true; return False once monotonic time has passed `deadline` (seconds).

    Python can reach no primitive that waits for a word of a shared page, so this function polls: first after 0.2 ms,
    then with growing pauses of up to 5 ms.
    """
    pause = _FIRST_PAUSE_SECONDS
    while not ready():
        if time.monotonic() >= deadline:
            return ready()
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
    return True

"""Waiting for a word of a shared page to change."""

from __future__ import annotations

import time
from collections.abc import Callable

_WAIT_FIRST, _WAIT_MOST = 0.0002, 0.005


def wait_until(ready: Callable[[], bool], deadline: float) -> bool:
    """Wait until `ready()`; False once monotonic time passes `deadline` (seconds).

    Words of a shared page have no wait primitive that Python can reach: this polls, first every 0.2 ms,
    then every 5 ms. It is used off the hot path only.
    """
    pause = _WAIT_FIRST
    while not ready():
        if time.monotonic() >= deadline:
            return ready()
        time.sleep(pause)
        pause = min(pause * 1.5, _WAIT_MOST)
    return True

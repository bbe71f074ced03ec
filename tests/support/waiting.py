"""Waits for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

DEADLINE = 90.0  # seconds for one wait; generous, for a loaded machine

T = TypeVar("T")


def wait_for(ready: Callable[[], T | None], what: str, seconds: float = DEADLINE) -> T:
    """Poll until `ready()` is truthy, and return the result; fail the test with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (result := ready()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what}"
        time.sleep(0.01)
    return result

"""Examines many places in threads, so that places on storage that does not answer hold up nothing but themselves."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

PATIENCE_SECONDS = 5.0
"""seconds that one call may take"""
_AT_ONCE = 16  # calls that run at once, not counting slow ones
_SLOW_SECONDS = 0.25  # after which a call makes room for another, because it may never return

Place = TypeVar("Place")
Seen = TypeVar("Seen")


def call_for_all(
    places: Sequence[Place], examine: Callable[[Place], Seen], patience_seconds: float = PATIENCE_SECONDS
) -> list[Seen | None]:  # fmt: skip
    """Call `examine` for each place in a thread of its own, and return the results in the order of the places.

    Args:
        places: the places to examine.
        examine: examines one place; may never return.
        patience_seconds: seconds that each call may take.

    Returns:
        The results; None for a call that has not returned in time.

    Raises:
        BaseException: whatever a call raises.
    """
    results: list[Seen | None] = [None] * len(places)
    raised: list[BaseException] = []
    finished: queue.SimpleQueue[int] = queue.SimpleQueue()

    def work(number: int) -> None:
        try:
            results[number] = examine(places[number])
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            raised.append(error)
        finished.put(number)

    waiting = list(range(len(places)))[::-1]
    running: dict[int, float] = {}  # when each running call was started, in monotonic seconds
    while not raised:
        now = time.monotonic()
        quick = sum(now - since < _SLOW_SECONDS for since in running.values())
        while waiting and quick < _AT_ONCE:
            number = waiting.pop()
            quick += 1
            running[number] = now
            threading.Thread(target=work, args=(number,), daemon=True).start()
        if not waiting and all(now - since >= patience_seconds for since in running.values()):
            return [None if number in running else result for number, result in enumerate(results)]
        try:
            running.pop(finished.get(timeout=_SLOW_SECONDS if waiting else patience_seconds / 10))
            while True:
                running.pop(finished.get_nowait())
        except queue.Empty:
            continue
    raise raised[0]

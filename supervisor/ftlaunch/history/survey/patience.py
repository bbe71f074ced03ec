"""Looks at many places, some of which may lie on storage that does not answer: those hold up nothing but themselves."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

PATIENCE = 5.0
"""seconds that one look may take"""
_AT_ONCE = 16  # looks that have just begun
_SLOW = 0.25  # seconds after which a look makes room for another: it may never come back

Place = TypeVar("Place")
Seen = TypeVar("Seen")


def look_at_all(
    places: Sequence[Place], look: Callable[[Place], Seen], patience: float = PATIENCE
) -> list[Seen | None]:  # fmt: skip
    """What each look has seen, in their order; None for one that has not come back within its patience, in seconds.

    A look has a thread of its own. Raises what a look raises.
    """
    seen: list[Seen | None] = [None] * len(places)
    raised: list[BaseException] = []
    back: queue.SimpleQueue[int] = queue.SimpleQueue()

    def work(number: int) -> None:
        try:
            seen[number] = look(places[number])
        except BaseException as error:  # noqa: BLE001 - it is raised again where the looks were asked for
            raised.append(error)
        back.put(number)

    waiting = list(range(len(places)))[::-1]
    out: dict[int, float] = {}  # since when a look is out
    while not raised:
        now = time.monotonic()
        fresh = sum(now - since < _SLOW for since in out.values())
        while waiting and fresh < _AT_ONCE:
            number, fresh = waiting.pop(), fresh + 1
            out[number] = now
            threading.Thread(target=work, args=(number,), daemon=True).start()
        if not waiting and all(now - since >= patience for since in out.values()):
            return [None if number in out else one for number, one in enumerate(seen)]
        try:
            out.pop(back.get(timeout=_SLOW if waiting else patience / 10))
            while True:
                out.pop(back.get_nowait())
        except queue.Empty:
            continue
    raise raised[0]

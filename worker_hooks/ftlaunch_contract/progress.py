"""How far long work has come, said in a line now and then: of commands in a log, of the saver, and of ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_FIRST = 5.0  # seconds without a word: most work is over by then
_EVERY = 10.0  # seconds between lines
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

Advance = Callable[[int], None]
"""Told of each piece of work that is done: so many bytes, or what else is counted. Several threads may call it."""


def ignore(count: int) -> None:
    """An Advance that tells nobody."""


class SlowWork:
    """Says lines about one piece of work, where it takes longer than a few seconds."""

    def __init__(
        self, doing: str, total: int | None, say: Callable[[str], None], unit: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """doing: `verifying`. total: None where it is not known. unit: what is counted, in the plural; empty: bytes.

        clock: monotonic seconds.
        """
        self._doing, self._total, self._say, self._unit, self._clock = doing, total, say, unit, clock
        self._done, self._began = 0, clock()
        self._due = self._began + _FIRST
        self._said = False
        self._lock = threading.Lock()

    def advance(self, count: int) -> None:
        """See Advance."""
        with self._lock:
            self._done += count
            now = self._clock()
            if now < self._due:
                return
            self._due, self._said = now + _EVERY, True
            line = f"{self._doing}: {under_way(self._done, self._total, now - self._began, self._unit)}"
        self._say(line)

    def finish(self) -> None:
        """The work is over: that is said where something was said before."""
        if self._said:
            self._say(f"{self._doing}: {whole(self._done, self._clock() - self._began, self._unit)}")


def under_way(done: int, total: int | None, seconds: float, unit: str = "") -> str:
    """`12.0 of 48.0 GiB, 1.2 GiB/s, 30 s left`, as far as that is known."""
    rate = done / seconds if seconds > 0 else 0.0
    parts = [f"{_part(done, total, unit)} of {_count(total, unit)}" if total and done <= total else _count(done, unit)]
    if rate:
        parts.append(f"{_count(rate, unit)}/s")
        if total and done <= total:
            parts.append(f"{_time((total - done) / rate)} left")
    return ", ".join(parts)


def whole(done: int, seconds: float, unit: str = "") -> str:
    """`48.0 GiB in 40 s, 1.2 GiB/s`."""
    rate = f", {_count(done / seconds, unit)}/s" if seconds > 0 else ""
    return f"{_count(done, unit)} in {_time(seconds)}{rate}"


def _part(done: int, total: int, unit: str) -> str:
    """A part of `total`, in the total's unit."""
    power = 0 if unit else _power(total)
    return f"{done / 1024**power:.1f}" if power else str(done)


def _count(count: float, unit: str) -> str:
    if unit:
        return f"{count} {unit}" if isinstance(count, int) else f"{count:.2g} {unit}"
    power = _power(count)
    return f"{count / 1024**power:.1f} {_UNITS[power]}" if power else f"{count:.0f} B"


def _power(count: float) -> int:
    """Of 1024, by which a number of bytes is divided for people."""
    power = 0
    while power < len(_UNITS) - 1 and round(count / 1024**power, 1) >= 1024:
        power += 1
    return power


def _time(seconds: float) -> str:
    rounded = round(seconds)
    if rounded < 120:
        return f"{rounded} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"

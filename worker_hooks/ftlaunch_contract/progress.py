"""Progress lines for work that takes long: commands write them to a log, the saver and ranks to theirs.

`SlowWork` counts what several threads report and calls `say` with a line every ten seconds, so that short work prints
nothing. The formatting functions are pure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

FIRST_SECONDS = 5.0
"""seconds before the first line: most work is over by then"""
INTERVAL_SECONDS = 10.0
"""seconds between two lines"""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

Advance = Callable[[int], None]
"""Called, also from several threads, with the amount of each finished piece of work, in bytes or the unit counted."""


def ignore(count: int) -> None:
    """Drop the report. The `Advance` of callers that want no progress lines."""


class SlowWork:
    """Writes lines about the progress of one piece of work that takes longer than a few seconds."""

    def __init__(
        self, doing: str, total: int | None, say: Callable[[str], None], unit: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """Start the clock.

        Args:
            doing: what is being done, as a participle: `verifying`.
            total: the amount of all work; None where the amount is not known.
            say: called with each line.
            unit: what is counted, in the plural; empty for bytes.
            clock: returns monotonic seconds.
        """
        self._doing = doing
        self._total = total
        self._say = say
        self._unit = unit
        self._clock = clock
        self._done = 0
        self._began = clock()
        self._due = self._began + FIRST_SECONDS
        self._has_said = False
        self._lock = threading.Lock()

    def advance(self, count: int) -> None:
        """Count a finished piece of work, and write a line if one is due. Thread-safe."""
        with self._lock:
            self._done += count
            now = self._clock()
            if now < self._due:
                return
            self._due = now + INTERVAL_SECONDS
            self._has_said = True
            line = f"{self._doing}: {under_way(self._done, self._total, now - self._began, self._unit)}"
        self._say(line)

    def finish(self) -> None:
        """Write a last line on the whole work, if a line was written before."""
        if self._has_said:
            self._say(f"{self._doing}: {whole(self._done, self._clock() - self._began, self._unit)}")


def under_way(done: int, total: int | None, seconds: float, unit: str = "") -> str:
    """Return `12.0 of 48.0 GiB, 1.2 GiB/s, 30 s left`, without the parts that are not known."""
    rate = done / seconds if seconds > 0 else 0.0
    if total and done <= total:
        parts = [f"{_format_part(done, total, unit)} of {_format_amount(total, unit)}"]
    else:  # what is done has outgrown the total that was expected
        parts = [_format_amount(done, unit)]
    if rate:
        parts.append(f"{_format_amount(rate, unit)}/s")
        if total and done <= total:
            parts.append(f"{_format_seconds((total - done) / rate)} left")
    return ", ".join(parts)


def whole(done: int, seconds: float, unit: str = "") -> str:
    """Return `48.0 GiB in 40 s, 1.2 GiB/s`."""
    rate = f", {_format_amount(done / seconds, unit)}/s" if seconds > 0 else ""
    return f"{_format_amount(done, unit)} in {_format_seconds(seconds)}{rate}"


def _format_part(done: int, total: int, unit: str) -> str:
    """Format a part of `total` in the unit in which `total` is written."""
    power = 0 if unit else _unit_power(total)
    return f"{done / 1024**power:.1f}" if power else str(done)


def _format_amount(count: float, unit: str) -> str:
    if unit:
        return f"{count} {unit}" if isinstance(count, int) else f"{count:.2g} {unit}"
    power = _unit_power(count)
    return f"{count / 1024**power:.1f} {_UNITS[power]}" if power else f"{count:.0f} B"


def _unit_power(count: float) -> int:
    """Return the power of 1024 by which a number of bytes is divided for people."""
    power = 0
    while power < len(_UNITS) - 1 and round(count / 1024**power, 1) >= 1024:
        power += 1
    return power


def _format_seconds(seconds: float) -> str:
    rounded = round(seconds)
    if rounded < 120:
        return f"{rounded} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"

"""Reports refused connections to the terminal: at most one line in ten seconds, with a count."""

from __future__ import annotations

from collections.abc import Callable

from ftlaunch.system.loop import Clock, Loop

INTERVAL_SECONDS = 10.0
"""seconds between two lines"""


class Refusals:
    """Counts refusals. The first is reported at once, and those of the next INTERVAL_SECONDS together."""

    def __init__(self, loop: Loop, clock: Clock, say: Callable[[str], None]) -> None:
        self._loop = loop
        self._clock = clock
        self._say = say
        self._count = 0
        self._last = ""
        self._quiet = False  # whether a line was written less than INTERVAL_SECONDS ago

    def add(self, why: str) -> None:
        """Count a refusal. why: a sentence."""
        self._count += 1
        self._last = why
        if not self._quiet:
            self._report()

    def _report(self) -> None:
        """Report the refusals since the last line, if any, and gather those of the next INTERVAL_SECONDS."""
        self._quiet = self._count > 0
        if self._count == 1:
            self._say(f"refused a connection: {self._last}")
        elif self._count:
            self._say(f"refused {self._count} connections in {INTERVAL_SECONDS:.0f} s; of the last: {self._last}")
        self._count = 0
        if self._quiet:
            self._loop.call_at(self._clock() + INTERVAL_SECONDS, (self, "report"), self._report)

    def close(self) -> None:
        """Report nothing more."""
        self._loop.cancel((self, "report"))

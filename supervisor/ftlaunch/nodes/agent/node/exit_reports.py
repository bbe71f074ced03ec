"""What an agent tells the head of ranks that end: the first end at once, those that follow within moments together.

A restart ends all ranks of all nodes. One message a rank would be sixteen thousand messages in a job of two thousand
nodes, which the head has to take before it can send its next orders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ftlaunch.system.loop import Clock, Loop

GATHER_SECONDS = 0.05
"""for which ends are gathered after a message about an end"""


class ExitReports:
    """Of one node."""

    def __init__(self, loop: Loop, clock: Clock, send: Callable[[int, Mapping[int, int]], None]) -> None:
        """send: tells the head: an attempt, and rank -> exit code in the order of the ends."""
        self._loop, self._clock, self._send = loop, clock, send
        self._attempt = -1
        self._codes: dict[int, int] = {}
        self._is_gathering = False

    def add(self, attempt: int, rank: int, code: int, *, is_last: bool) -> None:
        """Report the end of a rank, now or in a moment. is_last: no rank of the node lives any more."""
        if attempt != self._attempt:
            self.send_all()
            self._attempt = attempt
        self._codes[rank] = code
        if is_last or not self._is_gathering:
            self.send_all()
            self._is_gathering = True
            self._loop.call_at(self._clock() + GATHER_SECONDS, self, self._stop_gathering)

    def send_all(self) -> None:
        """Send what was gathered; nothing where there is nothing."""
        codes, self._codes = self._codes, {}
        if codes:
            self._send(self._attempt, codes)

    def _stop_gathering(self) -> None:
        self._is_gathering = False
        self.send_all()

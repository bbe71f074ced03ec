"""Reports the ends of a node's ranks to the head: the first end at once, later ends gathered into one message.

A restart ends all ranks of all nodes. With one message for each rank, the head of a job of two thousand nodes would
have to take sixteen thousand messages before its next orders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ftlaunch.system.loop import Clock, Loop

GATHER_SECONDS = 0.05
"""seconds for which ends are gathered after a message about an end"""


class ExitReports:
    """Gathers the ends of the ranks of one node."""

    def __init__(self, loop: Loop, clock: Clock, send: Callable[[int, Mapping[int, int]], None]) -> None:
        """Begin with nothing gathered.

        Args:
            loop: the agent's event loop.
            clock: monotonic seconds.
            send: sends the head an attempt's number and the exit code by rank, in the order of the ends.
        """
        self._loop = loop
        self._clock = clock
        self._send = send
        self._attempt = -1
        self._codes: dict[int, int] = {}
        self._is_gathering = False

    def add(self, attempt: int, rank: int, code: int, *, is_last: bool) -> None:
        """Report the end of a rank, now or within GATHER_SECONDS.

        Args:
            attempt: the number of the rank's attempt.
            rank: the rank.
            code: its exit code.
            is_last: whether no rank of the node lives any more; everything is then sent at once.
        """
        if attempt != self._attempt:
            self.send_all()
            self._attempt = attempt
        self._codes[rank] = code
        if is_last or not self._is_gathering:
            self.send_all()
            self._is_gathering = True
            self._loop.call_at(self._clock() + GATHER_SECONDS, self, self._stop_gathering)

    def send_all(self) -> None:
        """Send what was gathered, if anything."""
        codes = self._codes
        self._codes = {}
        if codes:
            self._send(self._attempt, codes)

    def _stop_gathering(self) -> None:
        self._is_gathering = False
        self.send_all()

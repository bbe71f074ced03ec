"""Decides when an agent has a lost head replaced. Pure.

Two things must have been true for a while: this node has heard nothing from the head, and storage has shown no new sign
of life of the head. A network cut alone deposes no head, and neither does storage that does not answer.

All moments are monotonic seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftlaunch.nodes.channel.claims import Sign

QUIET_SECONDS = 0.5
"""seconds without a message from the head after which its sign of life is read, in a job of few nodes"""
_LAST_TURN = 8.0  # seconds after the first turn at which nodes without a place follow, and all places from 39 on
_CUT_OFF = 4  # times `stale_seconds`: longer than a head that is itself cut off takes to give way
_TURN_SECONDS = 0.2  # between two candidates: the head's own machine comes first, then the places in their order


@dataclass
class Takeover:
    """What one agent has seen of the head's signs."""

    stale_seconds: float
    """seconds without a new sign, and without a message, after which the head may be replaced"""
    sign: Sign | None = None
    """the newest sign"""
    alive: bool = False
    """whether the head of `sign` was seen to show another sign"""
    read_at: float = 0.0
    """when the newest read that found `sign` was begun"""
    _first_seen_at: float = 0.0  # when `sign` was first seen

    def record_sign(self, sign: Sign | None, begun: float, now: float) -> None:
        """Record what a read of storage has found.

        A sign of an older head, written late, is ignored.

        Args:
            sign: the sign that was found, or None.
            begun: when the read was begun.
            now: when its answer came.
        """
        if sign is None or (self.sign is not None and sign.term < self.sign.term):
            return
        if sign != self.sign:
            self.alive = self.sign is not None and not sign.ended
            self.sign = sign
            self._first_seen_at = now
        self.read_at = begun

    def restart_wait(self, now: float) -> None:
        """Restart the wait at `now`, after an attempt to take over that was lost or has failed."""
        self._first_seen_at = now

    def is_due(self, last_message_at: float, place: int, *, at_home: bool) -> bool:
        """Return whether this agent must have a head started.

        Args:
            last_message_at: when the newest message of the head came.
            place: the place of this node in the attempt. A node without a place (-1) comes last, because it has no
                ranks whose training would go on.
            at_home: whether the head's process was on this machine, where it can be killed.
        """
        if self.sign is None or self.sign.ended:
            return False
        # A head that went on showing signs has lived on: this node is the unreachable one.
        is_cut_off = self._first_seen_at - last_message_at > _CUT_OFF * self.stale_seconds
        if place < 0 or is_cut_off:
            turn = _LAST_TURN
        elif at_home:
            turn = 0.0
        else:
            turn = min(_TURN_SECONDS * (place + 1), _LAST_TURN)
        return self.read_at - max(self._first_seen_at, last_message_at) > self.stale_seconds + turn

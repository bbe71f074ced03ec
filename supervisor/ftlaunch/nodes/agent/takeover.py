"""When an agent starts a head in the place of one that is gone. Pure.

Two things must be true for a while: this node has heard nothing of the head, and the storage has seen no sign of life
of it. A cut of the network alone deposes nobody, and neither does storage that does not answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftlaunch.nodes.channel.claims import Sign

QUIET = 0.5
"""seconds without a word from the head after which its sign of life is looked at, in a job of few nodes"""
_LAST = 8.0  # seconds after the first one, when all that have a place have had their turn, or there are very many
_CUT_OFF = 4  # times `stale`: longer than a head that is cut off itself takes to give way
_APART = 0.2  # seconds between the candidates: the head's own machine comes first, then the places in their order


@dataclass
class Takeover:
    """Of one agent."""

    stale: float
    """seconds"""
    sign: Sign | None = None
    """the newest that was seen"""
    alive: bool = False
    """its head was seen to go on counting"""
    looked: float = 0.0
    """when the newest look that has found it still the newest was begun"""
    _seen: float = 0.0  # when it was seen first

    def note(self, sign: Sign | None, begun: float, now: float) -> None:
        """A look, begun at `begun`, has found this sign. An older head's, written late, counts for nothing."""
        if sign is None or (self.sign is not None and sign.term < self.sign.term):
            return
        if sign != self.sign:
            self.alive = self.sign is not None and not sign.ended
            self.sign, self._seen = sign, now
        self.looked = begun

    def forget_time(self, now: float) -> None:
        """Somebody else was first, or nothing came of it: begin to wait anew."""
        self._seen = now

    def is_due(self, heard: float, place: int, *, at_home: bool) -> bool:
        """Whether this agent is to claim the next term.

        heard: when the head was last heard. place: of this node in the attempt, -1 where it has none: no ranks are
        here whose training would go on, and others come first. at_home: the head's process was on this machine, and can
        be ended from here.
        """
        if self.sign is None or self.sign.ended:
            return False
        cut_off = self._seen - heard > _CUT_OFF * self.stale  # the head lived on: it is this node that nobody reaches
        turn = _LAST if place < 0 or cut_off else 0.0 if at_home else min(_APART * (place + 1), _LAST)
        return self.looked - max(self._seen, heard) > self.stale + turn

"""How far the ranks of a node are with their snapshots; each rank says so in its own page.

Every rank writes its own words and reads those of all. Steps are written as step + 1, so that an empty word is no step.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.pages.words import ASKED, FLAGS, INTENT, MISSED, MOST_STEPS, NEWEST_SNAPSHOT, PREPARING, STEP
from ftlaunch_contract.protocol import Flag

# bits of ASKED
_GREW = 1
_LACKS_ROOM = 2
_DROPPED = 4
# Ranks poll these words: an exact int is a faster index than a row of the table.
_ASKED = int(ASKED)
_MISSED = int(MISSED)
_NEWEST_SNAPSHOT = int(NEWEST_SNAPSHOT)
_FLAGS = int(FLAGS)
_STEP = int(STEP)
_LOOP_LEFT = int(Flag.LOOP_LEFT)


class PeerProgress:
    """What this rank says of its snapshots, and what all ranks of the node say of theirs."""

    def __init__(self, rank: int, peers: Sequence[Page], first: int = 0) -> None:
        """Take the pages of the node's ranks, this one's included, from the rank `first` on."""
        self._page = peers[rank - first]
        self._peers = peers
        self._first = first
        self.alike = True  # whether all ranks are known to make the same number of steps

    def intend(self, total: int) -> None:
        """Announce that this rank begins a loop of `total` steps, which includes those of earlier attempts."""
        loop = (self._page.q[INTENT] >> 48) % 0x7FFF + 1
        self._page.q[INTENT] = loop << 48 | min(total, MOST_STEPS)
        self.alike = len(self._peers) == 1

    def other_intent(self) -> str | None:
        """Return why the ranks cannot go on together: another rank's loop is to make another number of steps.

        None: they can go on. A rank that is in another loop of its script is not compared.
        """
        if self.alike:
            return None
        own = self._page.q[INTENT]
        others = [peer.q[INTENT] if peer.attempt == self._page.attempt else 0 for peer in self._peers]
        for rank, other in enumerate(others, self._first):
            if other != own and other >> 48 == own >> 48:
                return (
                    f"cannot go on: this rank is to make {own & MOST_STEPS} steps and rank {rank}"
                    f" {other & MOST_STEPS}; all ranks"
                    " must make the same number of steps where there is no supervisor"
                )
        self.alike = all(other == own for other in others)
        return None

    def took(self, step: int) -> None:
        """Record that this rank's newest snapshot is of `step`; NONE: it has no snapshot."""
        self._page.q[_NEWEST_SNAPSHOT] = step + 1

    def all_have(self, step: int) -> bool:
        """Whether every rank has taken the snapshot of `step`."""
        attempt = self._page.attempt
        return all(peer.attempt == attempt and peer.q[_NEWEST_SNAPSHOT] > step for peer in self._peers)

    def left_before(self, step: int) -> int | None:
        """Return a rank that has left its loop before `step` and will never have a snapshot of it; None for none."""
        attempt = self._page.attempt
        for rank, peer in enumerate(self._peers, self._first):
            if peer.q[_FLAGS] & _LOOP_LEFT and peer.q[_STEP] < step and peer.attempt == attempt:
                return rank
        return None

    def missed(self, step: int) -> None:
        """Record that this rank has no snapshot of `step`, which was to be held for the saver and will not be saved."""
        self._page.q[_MISSED] = step + 1

    def any_missed(self, step: int) -> bool:
        """Whether a rank has no snapshot of `step`, which was to be held for the saver."""
        return any(peer.q[_MISSED] > step and peer.save_step != step for peer in self._peers)

    def set_preparing(self, value: bool) -> None:
        """Record whether this rank is preparing the slot of its next snapshot."""
        self._page.q[PREPARING] = int(value)

    def any_preparing(self) -> bool:
        """Whether a rank is preparing the slot of its next snapshot."""
        return any(peer.q[PREPARING] for peer in self._peers)

    # --- asking for a new agreement on the memory -----------------------------------------------------------

    def grew(self) -> None:
        """Ask for a new agreement because this rank's snapshots have outgrown the last one."""
        self._page.q[_ASKED] |= _GREW

    def found_no_room(self) -> None:
        """Record that this rank finds no room for a snapshot: no rank takes one before the next agreement."""
        self._page.q[_ASKED] |= _LACKS_ROOM

    def dropped(self) -> None:
        """Record that this rank has dropped a snapshot: no rank takes one before the next agreement."""
        self._page.q[_ASKED] |= _DROPPED

    def any_lacks_room(self) -> bool:
        """Whether a rank has found no room for a snapshot since the last agreement."""
        return any(peer.q[_ASKED] & _LACKS_ROOM for peer in self._peers)

    def any_gave_up(self) -> bool:
        """Whether a rank has no snapshot of a step that others may have, since the last agreement."""
        return any(peer.q[_ASKED] & (_LACKS_ROOM | _DROPPED) for peer in self._peers)

    def wanted(self) -> bool:
        """Whether a rank asks for a new agreement."""
        return any(peer.q[_ASKED] for peer in self._peers)

    def agreed(self) -> None:
        """Withdraw what this rank asks for: the ranks have agreed."""
        self._page.q[_ASKED] = 0

"""Asks one node for what it has of a step, and reads bytes from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ftlaunch.nodes.channel.framing import FrameError
from ftlaunch.nodes.peers.buddy_link import PeerAddress
from ftlaunch.nodes.peers.plan.described_slot import DescribedSlot
from ftlaunch.nodes.peers.plan.pieces import Stretch
from ftlaunch.nodes.peers.plan.tensor_layout import Layouts
from ftlaunch.nodes.peers.wire.described import Known, WrongDigestError, receive_slots
from ftlaunch.nodes.peers.wire.peer_connection import PeerError, connect
from ftlaunch.nodes.peers.wire.pieces_io import TRIES, PieceReceiver

_AHEAD = 2  # pieces that are asked for at once: the node reads one while another is on its way


class SourceLink:
    """A connection to a node that has something of the step."""

    def __init__(self, where: PeerAddress, token: bytes, lineage: str, step: int) -> None:
        """Raises OSError, FrameError, ValueError."""
        self.where = where
        self._about = {"lineage": lineage, "step": step}
        self._connection = connect(where.address, where.port, token)
        self._pieces = PieceReceiver(self._connection)

    def about(self, rank: int | None, layouts: Layouts) -> list[DescribedSlot]:
        """What it has of a rank's snapshot, or with None of those of its own ranks.

        Raises OSError, FrameError, ValueError, PeerError.
        """
        known: Known = {}
        for _ in range(TRIES):
            self._connection.send({"do": "about", **self._about, "rank": rank})
            answer = self._answer("about")
            try:
                slots = receive_slots(self._connection, answer.get("slots"), layouts, known)
            except WrongDigestError:
                continue
            if rank is not None and [slot.rank for slot in slots] != [rank]:
                raise FrameError("it describes what it was not asked for")
            return slots
        raise PeerError(f"what describes its snapshots was altered on its way, {TRIES} times")

    def _answer(self, did: str) -> dict[str, Any]:
        answer = self._connection.receive()
        if answer.get("did") != did:
            raise FrameError("it answered what it was not asked")
        if "error" in answer:
            raise PeerError(str(answer["error"])[:300])
        return answer

    def read(
        self,
        pieces: Sequence[Sequence[Stretch]],
        fds: Mapping[tuple[int, str], int],
        done: Callable[[int], None],
    ) -> None:
        """Read pieces into the files of (rank, group). done: is called with the number of each piece that is there.

        Raises OSError, FrameError, ValueError, PeerError.
        """
        due = deque((number, 1) for number in range(len(pieces)))
        asked: deque[tuple[int, int]] = deque()
        while due or asked:
            while due and len(asked) < _AHEAD:
                ranges = [stretch.wanted_from(self.where.node) for stretch in pieces[due[0][0]]]
                self._connection.send({"do": "read", **self._about, "ranges": ranges})
                asked.append(due.popleft())
            number, tries = asked.popleft()
            if self._receive(pieces[number], fds):
                done(number)
            elif tries == TRIES:
                raise PeerError(f"a piece was altered on its way, {TRIES} times")
            else:
                due.appendleft((number, tries + 1))

    def _receive(self, piece: Sequence[Stretch], fds: Mapping[tuple[int, str], int]) -> bool:
        """Receive a piece; whether its digest is right."""
        self._answer("read")
        ranges = [(fds[one.rank, one.group], one.begin, one.begin + one.size) for one in piece]
        right = self._pieces.receive(ranges)
        if self._answer("read").get("whole") is not True:
            raise PeerError("it has overwritten the step while it was read")
        return right

    def shut(self) -> None:
        """End it from another thread."""
        self._connection.shut()

    def close(self) -> None:
        """End it."""
        self._connection.close()

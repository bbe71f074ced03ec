"""A connection of a fetch to one node: asks what the node has of a step, and reads bytes. Blocks.

`supplier.py` is the other end, and describes the messages.
"""

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

_AHEAD = 2  # pieces that are requested at once, so that the node reads one while another is on its way


class SourceLink:
    """A connection to a node that may have something of a step."""

    def __init__(self, where: PeerAddress, token: bytes, lineage: str, step: int) -> None:
        """Connect to a node. Raises OSError, FrameError or ValueError if that fails."""
        self.where = where
        self._about = {"lineage": lineage, "step": step}
        self._connection = connect(where.address, where.port, token)
        self._pieces = PieceReceiver(self._connection)

    def ask_about(self, rank: int | None, layouts: Layouts) -> list[DescribedSlot]:
        """Ask what the node has of a snapshot.

        Args:
            rank: the rank; None for the snapshots of the node's own ranks.
            layouts: remembers the layouts.

        Raises:
            PeerError: the node refuses, or has nothing.
            OSError: the connection has failed. FrameError and ValueError: the answer is malformed.
        """
        known: Known = {}
        for _ in range(TRIES):
            self._connection.send({"do": "about", **self._about, "rank": rank})
            answer = self._answer("about")
            try:
                slots = receive_slots(
                    connection=self._connection, value=answer.get("slots"), layouts=layouts, known=known
                )
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
        """Read pieces into files.

        Args:
            pieces: the stretches of each piece.
            fds: the descriptor of the file of a rank and a group.
            done: called with the index of each piece that was read whole.

        Raises:
            PeerError: the node refuses, or no longer holds the step.
            OSError: the connection has failed. FrameError and ValueError: an answer is malformed.
        """
        due = deque((number, 1) for number in range(len(pieces)))  # index of a piece, and which try this is
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
        """Receive a piece. Return whether its digest is right."""
        self._answer("read")
        ranges = [(fds[stretch.rank, stretch.group], stretch.begin, stretch.begin + stretch.size) for stretch in piece]
        is_right = self._pieces.receive(ranges)
        if self._answer("read").get("whole") is not True:
            raise PeerError("it has overwritten the step while it was read")
        return is_right

    def shut(self) -> None:
        """End the connection from another thread."""
        self._connection.shut()

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

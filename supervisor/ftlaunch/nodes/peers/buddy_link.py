"""Sends copies of snapshots to the buddy, the node that keeps them, over a connection that stays open between copies.

Runs in the copier's sender thread, and blocks. `receiver.py` describes the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from ftlaunch.nodes.channel.framing import FrameError
from ftlaunch.nodes.peers.copier_node import CopierAttempt, CopierNode
from ftlaunch.nodes.peers.held.own_slots import NotHeldError
from ftlaunch.nodes.peers.held.snapshot_files import SnapshotFiles, describe
from ftlaunch.nodes.peers.plan import checked
from ftlaunch.nodes.peers.plan.described_slot import DescribedSlot
from ftlaunch.nodes.peers.plan.pieces import FileRange
from ftlaunch.nodes.peers.receiver import cut_pieces
from ftlaunch.nodes.peers.wire.described import as_message, runs_of
from ftlaunch.nodes.peers.wire.peer_connection import PeerConnection, PeerError, connect
from ftlaunch.nodes.peers.wire.pieces_io import TRIES, send_piece
from ftlaunch_contract.files.untrusted_json import mapping
from ftlaunch_contract.pages.page import NONE


@dataclass(frozen=True)
class PeerAddress:
    """Where the copier of a node listens."""

    node: int
    """the node's number, for messages and sentences"""
    address: str
    port: int


class GivenUpError(Exception):
    """A copy is no longer wanted, or was refused. The message is a clause that follows a colon."""


class BuddyLink:
    """The connection to one buddy. For one thread."""

    def __init__(self, node: CopierNode, buddy: PeerAddress, wanted: Callable[[], bool]) -> None:
        """Take the buddy; the first copy connects. wanted: returns whether copies still go to this buddy."""
        self._node = node
        self.buddy = buddy
        self._wanted = wanted
        self._connection: PeerConnection | None = None
        self._known: set[str] = set()  # digests of headers that the buddy has

    def copy(self, attempt: CopierAttempt, step: int) -> int:
        """Copy a step that all ranks of this node hold.

        After an error the copy does not count here. The buddy may have it if only its last answer was lost.

        Returns:
            The number of bytes that were sent.

        Raises:
            NotHeldError: the ranks do not hold the step, or no longer.
            GivenUpError: the copy is no longer wanted, or the buddy has refused it.
            PeerError: the buddy cannot do its part. FrameError, ValueError and OSError: the connection has failed.
        """
        try:
            attempt.slots.spare(step)
            with ExitStack() as stack:
                return self._copy(stack, attempt, step)
        except (PeerError, FrameError, ValueError, OSError):
            self.close()
            raise
        finally:
            attempt.slots.spare(NONE)

    def _copy(self, stack: ExitStack, attempt: CopierAttempt, step: int) -> int:
        held = attempt.slots.slots_of(step)
        files = {}
        for rank, slot in held.items():
            files[rank] = attempt.slots.open(rank, slot)
            stack.callback(files[rank].close)
        slots = describe(files)
        connection = self._connect()
        before = connection.bytes
        answer = self._offer(connection=connection, attempt=attempt, step=step, slots=slots)
        if answer.get("have") is not True:
            self._send(
                connection=connection,
                attempt=attempt,
                step=step,
                held=held,
                files=files,
                pieces=cut_pieces(slots, _lacks(answer, slots)),
            )
        return connection.bytes - before

    def _connect(self) -> PeerConnection:
        """Return the connection. Make a new one if the last one has ended since the last copy."""
        if self._connection is not None and self._connection.ended:
            self.close()
        if self._connection is None:
            buddy = self.buddy
            self._known = set()
            self._connection = connect(
                address=buddy.address, port=buddy.port, token=self._node.token, rate=self._node.bandwidth
            )
        return self._connection

    # --- the offer -----------------------------------------------------------------------------------------

    def _offer(
        self, connection: PeerConnection, attempt: CopierAttempt, step: int, slots: Sequence[DescribedSlot]
    ) -> dict[str, Any]:
        for _ in range(TRIES):
            descriptions, content = as_message(slots, self._known)
            offer = {
                "do": "copy",
                "lineage": attempt.lineage,
                "step": step,
                "world": attempt.world,
                "slots": descriptions,
            }
            connection.send(offer, content)
            answer = self._answer(connection, "copy")
            if answer.get("again") is not True:
                self._known |= {found.digest for slot in slots for found in slot.layouts.values()}
                return answer
            self._known = set()
        raise PeerError(f"what describes the copy was altered on its way, {TRIES} times")

    def _answer(self, connection: PeerConnection, did: str) -> dict[str, Any]:
        """Return the buddy's answer to a request. Raises GivenUpError if it is an error."""
        answer = connection.receive()
        while answer.get("did") == "wait":
            answer = connection.receive()
        if answer.get("did") != did:
            raise FrameError("it answered what it was not asked")
        if "error" in answer:
            raise GivenUpError(f"node {self.buddy.node} refused it: {str(answer['error'])[:300]}")
        return answer

    # --- its bytes -----------------------------------------------------------------------------------------

    def _send(
        self,
        connection: PeerConnection,
        attempt: CopierAttempt,
        step: int,
        held: Mapping[int, int],
        files: Mapping[int, SnapshotFiles],
        pieces: Sequence[Sequence[FileRange]],
    ) -> None:
        """Send the pieces, repeat those that were altered on their way, and have the copy committed."""
        due = list(range(len(pieces)))
        for _ in range(TRIES):
            for number in due:
                if attempt.over.is_set() or not self._wanted():
                    connection.send({"do": "drop"})
                    raise GivenUpError("copies are wanted no more, or by another node")
                ranges = [(files[rank].fds[group], begin, end) for rank, group, begin, end in pieces[number]]
                send_piece(connection, {"piece": number}, ranges)
            if not attempt.slots.is_held(step, held):
                connection.send({"do": "drop"})
                raise NotHeldError(f"step {step} was overwritten while it was sent")
            connection.send({"do": "commit"})
            altered = self._answer(connection, "commit").get("again")
            if not altered:
                return
            numbers = checked.items_of(altered, len(pieces), "`again`")
            due = [checked.whole_up_to(number, len(pieces) - 1, "a piece") for number in numbers]
        raise PeerError(f"a piece was altered on its way, {TRIES} times")

    def close(self) -> None:
        """End the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _lacks(answer: Mapping[str, Any], slots: Sequence[DescribedSlot]) -> dict[int, Any]:
    """Return the chunks that the buddy lacks, by rank and group. Raises ValueError if the answer is malformed."""
    lacks = checked.items_of(answer.get("lacks"), len(slots), "`lacks`")
    return {
        slot.rank: runs_of(mapping(by_group, "a slot"), slot.layouts, "`lacks`")
        for slot, by_group in zip(slots, lacks, strict=True)
    }

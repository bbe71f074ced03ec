"""Receives copies from another node, without the bytes that this node holds itself.

    <- {"do": "copy", "lineage", "step", "world", "slots": wire/described.py}
    -> {"did": "copy", "lacks": [{group: runs}, ...]}      what is missing here, for each slot
    or {"did": "copy", "have": true}, {"did": "copy", "again": true} (a wrong digest), {"did": "copy", "error"}
    -> {"did": "wait"} now and then while memory is reserved
    <- {"piece": number}, the bytes of the piece, and {"digest"}, for each piece into which `cut` cuts the missing
    ranges <- {"do": "commit"}, or {"do": "drop"}, which has no answer
    -> {"did": "commit"}, {"did": "commit", "error"}, or {"did": "commit", "again": [numbers]}: send these pieces again

The ranks of this node reach a step within milliseconds of the sender's ranks. Therefore an offer waits for this node's
ranks for up to a second, and is refused after that: to take everything instead would send gigabytes that this node is
about to hold itself. Runs in the server's thread for the connection, and blocks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from ftlaunch.nodes.peers.copier_node import CopierAttempt, CopierNode
from ftlaunch.nodes.peers.held.copy_writer import CopyWriter
from ftlaunch.nodes.peers.held.kept_copies import CopyRefusedError, KeptCopy
from ftlaunch.nodes.peers.held.own_slots import NotHeldError
from ftlaunch.nodes.peers.held.room import check_room
from ftlaunch.nodes.peers.held.snapshot_files import describe
from ftlaunch.nodes.peers.plan import checked
from ftlaunch.nodes.peers.plan.chunk_places import Runs, as_lists, byte_ranges
from ftlaunch.nodes.peers.plan.described_slot import DescribedSlot, held_by, lacking_of
from ftlaunch.nodes.peers.plan.pieces import FileRange, cut
from ftlaunch.nodes.peers.wire.described import Known, WrongDigestError, receive_slots
from ftlaunch.nodes.peers.wire.peer_connection import OpenRange, PeerConnection, why
from ftlaunch.nodes.peers.wire.pieces_io import PieceReceiver
from ftlaunch_contract.files import checksums
from ftlaunch_contract.files.untrusted_json import whole
from ftlaunch_contract.pages.waiting import wait_until

_PATIENCE_SECONDS = 1.0  # seconds that an offer waits for this node's ranks
_WAIT_SECONDS = 1.0  # between two messages `wait`

Lacks = Mapping[int, Mapping[str, Runs]]
"""rank -> group -> the chunks that this node lacks"""


class CopyReceiver:
    """Receives the copies that come over one connection."""

    def __init__(self, node: CopierNode, connection: PeerConnection) -> None:
        self._node = node
        self._connection = connection
        self._pieces = PieceReceiver(connection)
        self._known: Known = {}
        self._waited_at = 0.0  # when the last `wait` was sent

    def receive_copy(self, offer: dict[str, Any]) -> None:
        """Receive one copy, or refuse it.

        Args:
            offer: the message `copy`.

        Raises:
            OSError: the connection has failed. FrameError and ValueError: the other side has sent something malformed.
                The connection cannot be used after any of these.
        """
        lineage = checked.lineage_of(offer)
        step = whole(offer.get("step"), "`step`")
        world = whole(offer.get("world"), "`world`", 1)
        try:
            slots = receive_slots(
                connection=self._connection,
                value=offer.get("slots"),
                layouts=self._node.layouts,
                known=self._known,
            )
        except WrongDigestError:
            self._connection.send({"did": "copy", "again": True})
            return
        try:
            attempt = self._find_attempt(lineage, world, slots)
            if all(self._is_kept(slot, lineage, step) for slot in slots):
                self._connection.send({"did": "copy", "have": True})
                return
            lacks = lacking_of(slots, held_by(self._describe_own(attempt, step)))
        except CopyRefusedError as error:
            self._connection.send({"did": "copy", "error": str(error)})
            return
        with ExitStack() as stack:
            self._receive(stack=stack, attempt=attempt, step=step, slots=slots, lacks=lacks)

    def _find_attempt(self, lineage: str, world: int, slots: Sequence[DescribedSlot]) -> CopierAttempt:
        """Return the attempt to which an offer belongs. Raises CopyRefusedError if there is none."""
        attempt = self._node.attempt
        if attempt is None or attempt.over.is_set():
            raise CopyRefusedError("it takes no copies now")
        if (attempt.lineage, attempt.world) != (lineage, world):
            raise CopyRefusedError(f"it takes copies of lineage {attempt.lineage} of {attempt.world} ranks only")
        for slot in slots:
            if slot.rank in attempt.slots.ranks or slot.rank >= world or slot.present is not None:
                raise CopyRefusedError(f"it takes no copy of rank {slot.rank}")
        return attempt

    def _is_kept(self, slot: DescribedSlot, lineage: str, step: int) -> bool:
        """Return whether this same copy is kept already."""
        copy = self._node.kept.find(slot.rank, lineage, step)
        same = {group: found.digest for group, found in slot.layouts.items()}
        return copy is not None and copy.headers == same and copy.common == checksums.of_whole(slot.common)

    # --- what is to come -----------------------------------------------------------------------------------

    def _describe_own(self, attempt: CopierAttempt, step: int) -> list[DescribedSlot]:
        """Return the snapshots of this node's own ranks at a step, after a wait for them. Raises CopyRefusedError."""
        ours = attempt.slots
        deadline = time.monotonic() + _PATIENCE_SECONDS
        wait_until(lambda: attempt.over.is_set() or not ours.ranks or step in ours.list_steps(), deadline)
        try:
            slots = ours.slots_of(step)
            with ExitStack() as stack:
                files = {}
                for rank, slot in slots.items():
                    files[rank] = ours.open(rank, slot)
                    stack.callback(files[rank].close)
                found = describe(files)
        except NotHeldError as error:
            raise CopyRefusedError(str(error)) from error
        if not ours.is_held(step, slots):
            raise CopyRefusedError(f"step {step} has just been overwritten in its own slots")
        return found

    # --- receiving -----------------------------------------------------------------------------------------

    def _receive(
        self, stack: ExitStack, attempt: CopierAttempt, step: int, slots: Sequence[DescribedSlot], lacks: Lacks
    ) -> None:
        try:
            places, writers = self._lay_out(stack=stack, attempt=attempt, slots=slots, lacks=lacks)
        except (OSError, CopyRefusedError) as error:
            self._connection.send({"did": "copy", "error": why(error)})
            return
        missing = [{group: as_lists(runs) for group, runs in lacks[slot.rank].items()} for slot in slots]
        self._connection.send({"did": "copy", "lacks": missing})
        copies = [
            KeptCopy(
                rank=slot.rank,
                place=places[slot.rank],
                lineage=attempt.lineage,
                step=step,
                world=attempt.world,
                headers=writers[slot.rank].headers,
                common=checksums.of_whole(slot.common),
                present=lacks[slot.rank],
                own=slot.own,
                samples={group: b"".join(found).hex() for group, found in slot.samples.items()},
            )
            for slot in slots
        ]
        pieces = [
            [(writers[rank].fds[group], begin, end) for rank, group, begin, end in piece]
            for piece in cut_pieces(slots, lacks)
        ]
        if self._receive_pieces(pieces):
            self._commit(attempt, copies)

    def _receive_pieces(self, pieces: Sequence[Sequence[OpenRange]]) -> bool:
        """Receive all pieces. Return False if the sender gives the copy up."""
        missing = set(range(len(pieces)))
        while True:
            message = self._connection.receive()
            if "piece" in message:
                number = checked.whole_up_to(message["piece"], len(pieces) - 1, "`piece`")
                missing.add(number)
                if self._pieces.receive(pieces[number]):
                    missing.discard(number)
            elif message.get("do") == "drop":
                return False
            elif message.get("do") != "commit":
                raise ValueError("there is no such request in a copy")
            elif not missing:
                return True
            else:
                self._connection.send({"did": "commit", "again": sorted(missing)})

    def _lay_out(
        self, stack: ExitStack, attempt: CopierAttempt, slots: Sequence[DescribedSlot], lacks: Lacks
    ) -> tuple[dict[int, int], dict[int, CopyWriter]]:
        """Create the files of the copies, and reserve their memory.

        Returns:
            By rank, the place of the copy among the kept copies, and the writer of its files.

        Raises:
            OSError: there is no room. CopyRefusedError: copies cannot be taken now.
        """
        kept = self._node.kept
        places = {}
        writers = {}
        for slot in slots:
            place, before = kept.claim(slot.rank)
            stack.callback(kept.release, slot.rank)
            directory = kept.directory(slot.rank, place)
            writer = CopyWriter(
                directory=directory, rank=slot.rank, slot=slot.layouts, present=lacks[slot.rank], before=before
            )
            stack.callback(writer.close)
            places[slot.rank] = place
            writers[slot.rank] = writer
        needed = sum(writer.needed for writer in writers.values())
        if needed:
            check_room(self._node.memory_dir, needed)
        for slot in slots:
            writers[slot.rank].lay_out(lambda: self._send_wait(attempt))
            writers[slot.rank].write_common(slot.common)
        return places, writers

    def _send_wait(self, attempt: CopierAttempt) -> None:
        """Send `wait` if that is due. Raises CopyRefusedError if the attempt is over."""
        if attempt.over.is_set():
            raise CopyRefusedError("it takes no copies now")
        if time.monotonic() - self._waited_at > _WAIT_SECONDS:
            self._waited_at = time.monotonic()
            self._connection.send({"did": "wait"})

    def _commit(self, attempt: CopierAttempt, copies: Sequence[KeptCopy]) -> None:
        try:
            self._node.kept.commit(copies, lambda: not attempt.over.is_set())
        except (OSError, CopyRefusedError) as error:
            self._connection.send({"did": "commit", "error": why(error)})
            return
        self._connection.send({"did": "commit"})


def cut_pieces(slots: Sequence[DescribedSlot], lacks: Lacks) -> list[list[FileRange]]:
    """Return the pieces of a copy, which its sender and its receiver cut in the same way."""
    return cut(
        (slot.rank, group, begin, end)
        for slot in slots
        for group, found in slot.layouts.items()
        for begin, end in byte_ranges(found, lacks[slot.rank][group])
    )

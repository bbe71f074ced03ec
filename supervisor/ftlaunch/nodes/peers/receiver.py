"""Takes a copy that another node sends: what this node holds itself is not sent again.

    <- {"do": "copy", "lineage", "step", "world", "slots": wire/described.py}
    -> {"did": "copy", "lacks": [{group: runs}, ...]}      for each slot what is to come
    or {"did": "copy", "have": true}, {"did": "copy", "again": true} (a wrong digest), {"did": "copy", "error"}
    -> {"did": "wait"} now and then while that takes long
    <- {"piece": number}, the bytes of the piece, and {"digest"}, for each of the pieces that `cut` makes of what lacks
    <- {"do": "commit"}, or {"do": "drop"}, which has no answer
    -> {"did": "commit"}, {"did": "commit", "error"}, or {"did": "commit", "again": [numbers]}: these once more

The ranks of this node reach the step within the same milliseconds as the sender's, some earlier and some later. So an
offer waits for them, a second at most, and is refused then: taking everything instead would send gigabytes of what is
about to be here.
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
from ftlaunch.nodes.peers.held.snapshot_files import described
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

_PATIENCE = 1.0  # seconds that an offer waits for this node's ranks
_SIGN = 1.0  # seconds between two signs of life

Lacks = Mapping[int, Mapping[str, Runs]]


class CopyReceiver:
    """Takes the copies that come over one connection."""

    def __init__(self, node: CopierNode, connection: PeerConnection) -> None:
        self._node = node
        self._connection = connection
        self._pieces = PieceReceiver(connection)
        self._known: Known = {}
        self._said = 0.0

    def take(self, offer: dict[str, Any]) -> None:
        """Take one copy, or refuse it. Raises OSError, FrameError, ValueError: the connection is of no more use."""
        lineage = checked.lineage_of(offer)
        step = whole(offer.get("step"), "`step`")
        world = whole(offer.get("world"), "`world`", 1)
        try:
            slots = receive_slots(self._connection, offer.get("slots"), self._node.layouts, self._known)
        except WrongDigestError:
            self._connection.send({"did": "copy", "again": True})
            return
        try:
            attempt = self._attempt(lineage, world, slots)
            if all(self._has(slot, lineage, step) for slot in slots):
                self._connection.send({"did": "copy", "have": True})
                return
            lacks = lacking_of(slots, held_by(self._ours(attempt, step)))
        except CopyRefusedError as error:
            self._connection.send({"did": "copy", "error": str(error)})
            return
        with ExitStack() as stack:
            self._receive(stack, attempt, step, slots, lacks)

    def _attempt(self, lineage: str, world: int, slots: Sequence[DescribedSlot]) -> CopierAttempt:
        attempt = self._node.attempt
        if attempt is None or attempt.over.is_set():
            raise CopyRefusedError("it takes no copies now")
        if (attempt.lineage, attempt.world) != (lineage, world):
            raise CopyRefusedError(f"it takes copies of lineage {attempt.lineage} of {attempt.world} ranks only")
        for slot in slots:
            if slot.rank in attempt.slots.ranks or slot.rank >= world or slot.present is not None:
                raise CopyRefusedError(f"it takes no copy of rank {slot.rank}")
        return attempt

    def _has(self, slot: DescribedSlot, lineage: str, step: int) -> bool:
        copy = self._node.kept.find(slot.rank, lineage, step)
        same = {group: found.digest for group, found in slot.layouts.items()}
        return copy is not None and copy.headers == same and copy.common == checksums.of_whole(slot.common)

    # --- what is to come -----------------------------------------------------------------------------------

    def _ours(self, attempt: CopierAttempt, step: int) -> list[DescribedSlot]:
        """This node's slots at a step. Raises CopyRefusedError."""
        ours = attempt.slots
        deadline = time.monotonic() + _PATIENCE
        wait_until(lambda: attempt.over.is_set() or not ours.ranks or step in ours.steps(), deadline)
        try:
            slots = ours.slots_of(step)
            with ExitStack() as stack:
                files = {}
                for rank, slot in slots.items():
                    files[rank] = ours.open(rank, slot)
                    stack.callback(files[rank].close)
                found = described(files)
        except NotHeldError as error:
            raise CopyRefusedError(str(error)) from error
        if not ours.still(step, slots):
            raise CopyRefusedError(f"step {step} has just been overwritten in its own slots")
        return found

    # --- receiving -----------------------------------------------------------------------------------------

    def _receive(
        self, stack: ExitStack, attempt: CopierAttempt, step: int, slots: Sequence[DescribedSlot], lacks: Lacks
    ) -> None:
        try:
            places, writers = self._lay_out(stack, attempt, slots, lacks)
        except (OSError, CopyRefusedError) as error:
            self._connection.send({"did": "copy", "error": why(error)})
            return
        told = [{group: as_lists(runs) for group, runs in lacks[slot.rank].items()} for slot in slots]
        self._connection.send({"did": "copy", "lacks": told})
        copies = [
            KeptCopy(
                slot.rank,
                places[slot.rank],
                attempt.lineage,
                step,
                attempt.world,
                writers[slot.rank].headers,
                checksums.of_whole(slot.common),
                lacks[slot.rank],
                slot.own,
                {group: b"".join(found).hex() for group, found in slot.samples.items()},
            )
            for slot in slots
        ]
        pieces = [
            [(writers[rank].fds[group], begin, end) for rank, group, begin, end in piece]
            for piece in pieces_of(slots, lacks)
        ]
        if self._receive_pieces(pieces):
            self._commit(attempt, copies)

    def _receive_pieces(self, pieces: Sequence[Sequence[OpenRange]]) -> bool:
        """Receive all pieces; False when the sender gives the copy up."""
        missing = set(range(len(pieces)))
        while True:
            message = self._connection.receive()
            if "piece" in message:
                number = checked.size_of(message["piece"], len(pieces) - 1, "`piece`")
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
        """Places and files for the copies, their memory reserved. Raises OSError, CopyRefusedError."""
        kept = self._node.kept
        places = {}
        writers = {}
        for slot in slots:
            place, before = kept.claim(slot.rank)
            stack.callback(kept.release, slot.rank)
            directory = kept.directory(slot.rank, place)
            writer = CopyWriter(directory, slot.rank, slot.layouts, lacks[slot.rank], before)
            stack.callback(writer.close)
            places[slot.rank] = place
            writers[slot.rank] = writer
        needed = sum(writer.needed for writer in writers.values())
        if needed:
            check_room(self._node.memory_dir, needed)
        for slot in slots:
            writers[slot.rank].lay_out(lambda: self._sign_of_life(attempt))
            writers[slot.rank].write_common(slot.common)
        return places, writers

    def _sign_of_life(self, attempt: CopierAttempt) -> None:
        if attempt.over.is_set():
            raise CopyRefusedError("it takes no copies now")
        if time.monotonic() - self._said > _SIGN:
            self._said = time.monotonic()
            self._connection.send({"did": "wait"})

    def _commit(self, attempt: CopierAttempt, copies: Sequence[KeptCopy]) -> None:
        try:
            self._node.kept.commit(copies, lambda: not attempt.over.is_set())
        except (OSError, CopyRefusedError) as error:
            self._connection.send({"did": "commit", "error": why(error)})
            return
        self._connection.send({"did": "commit"})


def pieces_of(slots: Sequence[DescribedSlot], lacks: Lacks) -> list[list[FileRange]]:
    """The pieces of a copy; its sender and its receiver cut alike."""
    return cut(
        (slot.rank, group, begin, end)
        for slot in slots
        for group, found in slot.layouts.items()
        for begin, end in byte_ranges(found, lacks[slot.rank][group])
    )

"""Answers copiers that fetch: describes what this node holds of a step, and sends bytes of it.

<- {"do": "about", "lineage", "step", "rank": a rank of which this node has a copy or a slot; null for its own ranks}
-> {"did": "about", "slots": wire/described.py}; without common.json for its own ranks
<- {"do": "read", "lineage", "step", "ranges": [[rank, group, begin, end], ...]}
-> {"did": "read"}, the bytes, {"digest"}, and {"did": "read", "whole": whether the step was still held after that}
or {"did", "error"}

Runs in the server's thread for the connection, and blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ftlaunch.nodes.peers.copier_node import CopierNode
from ftlaunch.nodes.peers.held.kept_copies import KeptCopy
from ftlaunch.nodes.peers.held.own_slots import NotHeldError
from ftlaunch.nodes.peers.held.snapshot_files import SnapshotFiles, describe
from ftlaunch.nodes.peers.plan import checked
from ftlaunch.nodes.peers.plan.described_slot import DescribedSlot, split_samples
from ftlaunch.nodes.peers.plan.pieces import LARGEST, MOST_RANGES, FileRange
from ftlaunch.nodes.peers.wire.described import as_message
from ftlaunch.nodes.peers.wire.peer_connection import PeerConnection, why
from ftlaunch.nodes.peers.wire.pieces_io import send_piece
from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.files.untrusted_json import whole
from ftlaunch_contract.pages.page import NONE


@dataclass(frozen=True, eq=False)
class _Held:
    """An open snapshot in this node's memory."""

    files: SnapshotFiles
    copy: KeptCopy | None
    """None for a slot of an own rank"""
    is_unchanged: Callable[[], bool]
    """returns whether the files still hold the same snapshot"""


class Supplier:
    """Answers over one connection. Opened snapshots stay open until another step is requested."""

    def __init__(self, node: CopierNode, connection: PeerConnection) -> None:
        self._node = node
        self._connection = connection
        self._open: dict[int, _Held] = {}
        self._asked: tuple[str, int] | None = None  # lineage and step of the open snapshots

    def describe(self, message: dict[str, Any]) -> None:
        """Describe the snapshot of one rank, or those of all ranks of this node.

        Raises:
            OSError: the connection has failed. FrameError and ValueError: the request is malformed.
        """
        lineage = checked.lineage_of(message)
        step = whole(message.get("step"), "`step`")
        rank = None if message.get("rank") is None else checked.rank_of(message["rank"])
        try:
            slots = self._describe_own(lineage, step) if rank is None else [self._describe_one(lineage, step, rank)]
        except NotHeldError as error:
            self._connection.send({"did": "about", "error": str(error)})
            return
        if rank is None:
            slots = [replace(slot, common=b"") for slot in slots]
        descriptions, content = as_message(slots, ())
        self._connection.send({"did": "about", "slots": descriptions}, content)

    def _describe_own(self, lineage: str, step: int) -> list[DescribedSlot]:
        attempt = self._node.attempt
        ranks = attempt.slots.ranks if attempt is not None else ()
        return describe({rank: self._open_snapshot(lineage, step, rank).files for rank in ranks})

    def _describe_one(self, lineage: str, step: int, rank: int) -> DescribedSlot:
        held = self._open_snapshot(lineage, step, rank)
        if held.copy is None:
            slot = next(slot for slot in self._describe_own(lineage, step) if slot.rank == rank)
        else:
            files = held.files
            slot = DescribedSlot(
                rank=rank,
                layouts=files.layouts,
                common=files.common,
                own=held.copy.own,
                samples={group: split_samples(bytes.fromhex(digits)) for group, digits in held.copy.samples.items()},
                present=held.copy.present,
            )
        if not held.is_unchanged():
            raise NotHeldError(f"the snapshot of rank {rank} has just been overwritten")
        return slot

    # --- bytes ---------------------------------------------------------------------------------------------

    def send_ranges(self, message: dict[str, Any]) -> None:
        """Send bytes of snapshots.

        Raises:
            OSError: the connection has failed. FrameError and ValueError: the request is malformed.
            PeerError: a file is shorter than its header says.
        """
        lineage = checked.lineage_of(message)
        step = whole(message.get("step"), "`step`")
        ranges = _ranges(message.get("ranges"))
        try:
            held = {rank: self._open_snapshot(lineage, step, rank) for rank in {rank for rank, *_ in ranges}}
        except NotHeldError as error:
            self._connection.send({"did": "read", "error": str(error)})
            return
        for rank, group, begin, end in ranges:
            if not begin < end <= held[rank].files.layouts[group].size:
                raise ValueError(f"the {group} file of rank {rank} has no bytes {begin} to {end}")
        opened = [(held[rank].files.fds[group], begin, end) for rank, group, begin, end in ranges]
        send_piece(self._connection, {"did": "read"}, opened)
        is_whole = all(snapshot.is_unchanged() for snapshot in held.values())
        self._connection.send({"did": "read", "whole": is_whole})

    # --- what is open --------------------------------------------------------------------------------------

    def _open_snapshot(self, lineage: str, step: int, rank: int) -> _Held:
        """Return an open snapshot of a rank. Raises NotHeldError if this node has none."""
        if self._asked != (lineage, step):
            self.close()
            self._asked = lineage, step
        held = self._open.get(rank)
        if held is None or not held.is_unchanged():
            self._forget(rank)
            held = self._open[rank] = self._find(lineage, step, rank)
        return held

    def _find(self, lineage: str, step: int, rank: int) -> _Held:
        attempt = self._node.attempt
        kept = self._node.kept
        if attempt is None or attempt.lineage != lineage:
            raise NotHeldError(f"it holds nothing of lineage {lineage}")
        slots = attempt.slots
        if (slot := slots.slot_of(rank, step)) != NONE:
            return _Held(slots.open(rank, slot), None, lambda: slots.slot_of(rank, step) == slot)
        copy = kept.find(rank, lineage, step)
        if copy is None:
            raise NotHeldError(f"it holds no snapshot of rank {rank} of step {step}")
        try:
            files = SnapshotFiles(kept.directory(rank, copy.place), self._node.layouts)
        except (OSError, Damaged) as error:
            raise NotHeldError(f"its copy of rank {rank} cannot be read: {why(error)}") from error
        return _Held(files, copy, lambda: kept.holds(copy))

    def _forget(self, rank: int) -> None:
        if held := self._open.pop(rank, None):
            held.files.close()

    def close(self) -> None:
        """Close all open snapshots."""
        for rank in list(self._open):
            self._forget(rank)


def _ranges(value: object) -> list[FileRange]:
    """Return the ranges of a request. Raises ValueError if they are malformed or too large."""
    found = []
    for item in checked.items_of(value, MOST_RANGES, "`ranges`"):
        rank, group, begin, end = checked.items_of(item, 4, "a range")
        found.append((checked.rank_of(rank), checked.group_of(group), whole(begin, "begin"), whole(end, "end")))
    if sum(max(end - begin, 0) for *_, begin, end in found) > LARGEST:
        raise ValueError(f"more than {LARGEST} bytes are asked for at once")
    return found

"""Finds which nodes can supply each byte of the slots of a fetch. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from ftlaunch.nodes.peers.plan.chunk_places import Identity, indexes
from ftlaunch.nodes.peers.plan.described_slot import DescribedSlot
from ftlaunch.nodes.peers.plan.pieces import Stretch, joined
from ftlaunch.nodes.peers.plan.tensor_layout import SlotLayout

Place = tuple[int, str, int]
"""rank, group, and the byte in the snapshot's file at which a chunk begins"""
Holders = Mapping[int, DescribedSlot]
"""node -> what the node has of one rank's snapshot: a copy, or the whole slot"""


class MissingError(Exception):
    """A snapshot cannot be restored. The message is a clause that follows a colon."""


def described_alike(rank: int, holders: Holders) -> DescribedSlot:
    """Return the description of a rank's snapshot. Raises MissingError if no node has it, or if the nodes differ."""
    if not holders:
        _missing(rank, "no node that answers has a copy of it")
    first, *others = holders.values()
    for other in others:
        if _digests(other.layouts) != _digests(first.layouts) or other.common != first.common:
            _missing(rank, f"the nodes {', '.join(map(str, sorted(holders)))} have different copies of it")
    return first


def _missing(rank: int, what: str) -> NoReturn:
    raise MissingError(f"the snapshot of rank {rank} is lost, {what}")


def _digests(slot: SlotLayout) -> dict[str, str]:
    return {group: found.digest for group, found in slot.items()}


def stretches_of(copies: Mapping[int, Holders], supplied: Mapping[int, Sequence[DescribedSlot]]) -> list[Stretch]:
    """Return all bytes of the snapshots to restore, and where each node has them.

    Args:
        copies: the nodes that have something of a rank's snapshot, by rank.
        supplied: the snapshots of a node's own ranks, by node.

    Raises:
        MissingError: no node has some of the bytes.
    """
    elsewhere = _index(supplied)
    found: list[Stretch] = []
    for rank, holders in sorted(copies.items()):
        wanted = described_alike(rank, holders)
        for group in wanted.layouts:
            found += joined(_chunks(rank=rank, group=group, wanted=wanted, holders=holders, elsewhere=elsewhere))
    return found


def _index(supplied: Mapping[int, Sequence[DescribedSlot]]) -> dict[Identity, dict[int, Place]]:
    """Return where each node has a chunk, by chunk and node; without what ranks save as their own."""
    found: dict[Identity, dict[int, Place]] = {}
    for node, slots in sorted(supplied.items()):
        for slot in slots:
            for group, layout in slot.layouts.items():
                for number, chunk in slot.shared(group).items():
                    found.setdefault(chunk, {}).setdefault(node, (slot.rank, group, layout.begins[number]))
    return found


def _chunks(
    rank: int, group: str, wanted: DescribedSlot, holders: Holders, elsewhere: Mapping[Identity, Mapping[int, Place]]
) -> Iterable[Stretch]:
    layout = wanted.layouts[group]
    shared = wanted.shared(group)
    present = {node: None if slot.present is None else indexes(slot.present[group]) for node, slot in holders.items()}
    for number, (chunk, begin) in enumerate(zip(layout.chunks, layout.begins, strict=True)):
        sources = dict(elsewhere.get(shared[number], {})) if number in shared else {}
        for node, here in present.items():
            if here is None or number in here:
                sources[node] = rank, group, begin
        if chunk.nbytes and not sources:
            _missing(rank, f"no node that answers has its {chunk.key}")
        if chunk.nbytes:
            yield Stretch(rank=rank, group=group, begin=begin, size=chunk.nbytes, sources=sources)

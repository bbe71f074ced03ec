"""Where each byte of the slots that are fetched can be had. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from ftlaunch.nodes.peers.plan.chunk_places import Identity, indexes
from ftlaunch.nodes.peers.plan.described_slot import DescribedSlot
from ftlaunch.nodes.peers.plan.pieces import Stretch, joined
from ftlaunch.nodes.peers.plan.tensor_layout import SlotLayout

Place = tuple[int, str, int]
"""rank, group, and where in the file of its snapshot a chunk begins"""
Holders = Mapping[int, DescribedSlot]
"""node -> what it has of one rank's snapshot: a copy, or the whole slot"""


class MissingError(Exception):
    """A snapshot cannot be had whole; the message is a clause that follows a colon."""


def described_alike(rank: int, holders: Holders) -> DescribedSlot:
    """The description of a rank's snapshot on which all that have it agree. Raises MissingError."""
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
    """All bytes of the snapshots of the ranks in `copies`, and where each node has them. Raises MissingError.

    supplied: node -> the snapshots of its own ranks.
    """
    elsewhere = _index(supplied)
    found: list[Stretch] = []
    for rank, holders in sorted(copies.items()):
        wanted = described_alike(rank, holders)
        for group in wanted.layouts:
            found += joined(_chunks(rank, group, wanted, holders, elsewhere))
    return found


def _index(supplied: Mapping[int, Sequence[DescribedSlot]]) -> dict[Identity, dict[int, Place]]:
    """Chunk -> node -> where it lies there; without what ranks save as their own."""
    found: dict[Identity, dict[int, Place]] = {}
    for node, slots in sorted(supplied.items()):
        for slot in slots:
            for group, layout in slot.layouts.items():
                for number, one in slot.shared(group).items():
                    found.setdefault(one, {}).setdefault(node, (slot.rank, group, layout.begins[number]))
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
            yield Stretch(rank, group, begin, chunk.nbytes, sources)

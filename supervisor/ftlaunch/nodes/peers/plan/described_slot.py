"""Describes a rank's snapshot, and decides what another node lacks of it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ftlaunch.nodes.peers.plan.chunk_places import Identity, Runs, as_runs, identity, indexes
from ftlaunch.nodes.peers.plan.tensor_layout import SlotLayout

SAMPLE_BYTES = 8
"""bytes of the digest of a sample of a chunk's values"""


@dataclass(frozen=True, eq=False)
class DescribedSlot:
    """A rank's snapshot, without the bytes of its tensors."""

    rank: int
    layouts: SlotLayout
    common: bytes
    """the content of common.json"""
    own: Mapping[str, Runs]
    """group -> the chunks that the rank saves as its own"""
    samples: Mapping[str, Sequence[bytes]]
    """group -> a digest of a sample of the values of each chunk, in the order of the file"""
    present: Mapping[str, Runs] | None = None
    """group -> the chunks that are there; None for all"""

    def shared(self, group: str) -> dict[int, Identity]:
        """Return the identities of the chunks that other nodes may hold as well, by index in the file of a group."""
        own = indexes(self.own[group])
        samples = self.samples[group]
        return {
            number: identity(chunk, samples[number])
            for number, chunk in enumerate(self.layouts[group].chunks)
            if number not in own
        }


def split_samples(together: bytes) -> list[bytes]:
    """Split joined samples."""
    return [together[begin : begin + SAMPLE_BYTES] for begin in range(0, len(together), SAMPLE_BYTES)]


def held_by(slots: Iterable[DescribedSlot]) -> set[Identity]:
    """Return the identities of the chunks that a node's ranks hold and that others may hold as well."""
    return {chunk for slot in slots for group in slot.layouts for chunk in slot.shared(group).values()}


def lacking_of(slots: Iterable[DescribedSlot], held: Collection[Identity]) -> dict[int, dict[str, Runs]]:
    """Return the chunks that a node lacks if it holds `held`, by rank and group."""
    return {slot.rank: {group: _lacking(slot, group, held) for group in slot.layouts} for slot in slots}


def _lacking(slot: DescribedSlot, group: str, held: Collection[Identity]) -> Runs:
    there = {number for number, chunk in slot.shared(group).items() if chunk in held}
    return as_runs(number for number in range(len(slot.layouts[group].chunks)) if number not in there)

"""A rank's snapshot as one copier describes it to another, and what another node lacks of it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ftlaunch.nodes.peers.plan.chunk_places import Identity, Runs, as_runs, identity, indexes
from ftlaunch.nodes.peers.plan.tensor_layout import SlotLayout

SAMPLE_BYTES = 8
"""of the digest that stands for a sample of a chunk's values"""


@dataclass(frozen=True, eq=False)
class DescribedSlot:
    """What there is of a rank's snapshot."""

    rank: int
    layouts: SlotLayout
    common: bytes
    own: Mapping[str, Runs]
    """group -> the chunks that the rank saves as its own"""
    samples: Mapping[str, Sequence[bytes]]
    """group -> for each chunk a digest of a sample of its values, as they are in the snapshot"""
    present: Mapping[str, Runs] | None = None
    """group -> the chunks that are there; None: all"""

    def shared(self, group: str) -> dict[int, Identity]:
        """Number of a chunk -> its identity, of those that other nodes may hold as well."""
        own = indexes(self.own[group])
        samples = self.samples[group]
        return {
            number: identity(chunk, samples[number])
            for number, chunk in enumerate(self.layouts[group].chunks)
            if number not in own
        }


def split_samples(together: bytes) -> list[bytes]:
    """Return the samples that lie one behind another."""
    return [together[at : at + SAMPLE_BYTES] for at in range(0, len(together), SAMPLE_BYTES)]


def held_by(slots: Iterable[DescribedSlot]) -> set[Identity]:
    """What the ranks of a node hold that others may hold as well."""
    return {one for slot in slots for group in slot.layouts for one in slot.shared(group).values()}


def lacking_of(slots: Iterable[DescribedSlot], held: Collection[Identity]) -> dict[int, dict[str, Runs]]:
    """rank -> group -> the chunks that a node lacks which holds `held`."""
    return {slot.rank: {group: _lacking(slot, group, held) for group in slot.layouts} for slot in slots}


def _lacking(slot: DescribedSlot, group: str, held: Collection[Identity]) -> Runs:
    there = {number for number, one in slot.shared(group).items() if one in held}
    return as_runs(number for number in range(len(slot.layouts[group].chunks)) if number not in there)

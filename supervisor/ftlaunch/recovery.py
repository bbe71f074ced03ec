"""Where the state of an attempt comes from: the newest step that can be had whole. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NONE = -1


@dataclass(frozen=True)
class Source:
    """The answer: 'memory', 'storage' or 'fresh', and the step."""

    kind: str
    step: int


def newest_common(slots: Mapping[int, Sequence[int]], ranks: int) -> int:
    """The newest step that every one of `ranks` ranks holds whole in a slot; NONE when there is none.

    slots: rank -> the step in each of its slots (NONE: not whole).
    """
    if any(rank not in slots for rank in range(ranks)) or ranks == 0:
        return NONE
    common = set(slots[0])
    for rank in range(1, ranks):
        common &= set(slots[rank])
    return max((step for step in common if step >= 0), default=NONE)


def choose(memory_step: int, storage_step: int) -> Source:
    """The newer of the two; memory where they are equal, as it costs least."""
    if memory_step == NONE and storage_step == NONE:
        return Source("fresh", 0)
    if memory_step >= storage_step:
        return Source("memory", memory_step)
    return Source("storage", storage_step)

"""Which chunks of a snapshot another node holds as well. Pure.

Each node saves all that is replicated, under the same key on every node, and of a sharded tensor its ranks' own
shards. So what has the same key, dtype, shapes and offset at the same step of the same lineage is to be the same bytes;
but not what a rank saves as its own. Whether it is the same nobody on the nodes has compared: replicas that lie on
several nodes may have begun with other values, or drifted apart. So a sample of the values tells chunks apart, too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from ftlaunch.nodes.peers.plan.tensor_layout import SlotLayout, TensorLayout
from ftlaunch_contract.checkpoint.tensor_file import Chunk

Identity = tuple[str, str, tuple[int, ...], tuple[int, ...], tuple[int, ...], bytes]
Runs = tuple[tuple[int, int], ...]
"""indexes of chunks: (first, after the last), in order, none touching the next"""

_OWN = re.compile(r"(?<!@)(?:@@)*@\d+")  # at the end of a key: `@` of a path is written `@@`


def identity(chunk: Chunk, sample: bytes) -> Identity:
    """What tells a chunk from all others, on every node. sample: of its values."""
    return chunk.key, chunk.dtype, chunk.whole, chunk.offset, chunk.shape, sample


def plain_key(key: str) -> str | None:
    """The key without the rank that saves it as its own; None where no rank is named."""
    for found in _OWN.finditer(key):
        if found.end() == len(key):
            return key[: key.rindex("@")]
    return None


def own_keys(slots: Iterable[SlotLayout]) -> set[str]:
    """The keys of the ranks of one node under which a rank saves its own.

    Rank 0 saves its own under the plain key; that other ranks of its node save theirs tells it from a replicated one.
    """
    keys = {chunk.key for slot in slots for layout in slot.values() for chunk in layout.chunks}
    named = {key: plain for key in keys if (plain := plain_key(key)) is not None}
    return keys & (named.keys() | set(named.values()))


def own_runs(layout: TensorLayout, own: Collection[str]) -> Runs:
    """The chunks of a file that one rank holds as its own."""
    return as_runs(n for n, chunk in enumerate(layout.chunks) if chunk.key in own)


def as_runs(numbers: Iterable[int]) -> Runs:
    """Rising numbers, joined."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return tuple(found)


def indexes(runs: Runs) -> set[int]:
    """The numbers in runs."""
    return {number for first, end in runs for number in range(first, end)}


def byte_ranges(layout: TensorLayout, runs: Runs) -> list[tuple[int, int]]:
    """Where in the file the chunks lie that `runs` names; empty ones lie nowhere."""
    found = []
    for first, end in runs:
        begin = layout.begins[first]
        last = layout.begins[end - 1] + layout.chunks[end - 1].nbytes
        if begin < last:
            found.append((begin, last))
    return found


def checked_runs(value: object, count: int, what: str) -> Runs:
    """Runs of `count` chunks as they come from another node. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError(f"{what} is not a list")
    found = []
    before = -1
    for pair in value:
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(number) is int for number in pair)):
            raise ValueError(f"{what} is not a list of pairs of whole numbers")
        first, end = pair
        if not before < first < end <= count:
            raise ValueError(f"{what} names chunks that are not there, or not in order")
        found.append((first, end))
        before = end
    return tuple(found)


def total(slots: Mapping[int, SlotLayout], runs: Mapping[int, Mapping[str, Runs]]) -> int:
    """Bytes of the chunks that `runs` names."""
    return sum(
        end - begin
        for rank, groups in runs.items()
        for group, chosen in groups.items()
        for begin, end in byte_ranges(slots[rank][group], chosen)
    )


def as_lists(runs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Runs as a message has them."""
    return [list(run) for run in runs]

"""Decides which chunks of a snapshot another node holds as well. Pure.

Each node saves everything that is replicated, under the same key on every node, and its ranks' own shards of sharded
tensors. Chunks with the same key, dtype, shapes and offset, at the same step of the same lineage, should therefore have
the same bytes, except for what a rank saves as its own. But nobody has compared the nodes: replicas may have begun with
different values, or drifted apart. Therefore a sample of the values is also part of a chunk's identity.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from ftlaunch.nodes.peers.plan.tensor_layout import SlotLayout, TensorLayout
from ftlaunch_contract.checkpoint.tensor_file import Chunk

Identity = tuple[str, str, tuple[int, ...], tuple[int, ...], tuple[int, ...], bytes]
"""key, dtype, whole shape, offset, shape, and sample of a chunk"""
Runs = tuple[tuple[int, int], ...]
"""indexes of chunks as pairs (first, after the last), in order, with gaps between them"""

_OWN = re.compile(r"(?<!@)(?:@@)*@\d+")  # a rank at the end of a key; `@` of a path is written `@@`


def identity(chunk: Chunk, sample: bytes) -> Identity:
    """Return what tells a chunk from all others, on every node. sample: a digest of some of its values."""
    return chunk.key, chunk.dtype, chunk.whole, chunk.offset, chunk.shape, sample


def plain_key(key: str) -> str | None:
    """Return a key without the rank that saves it as its own, or None if the key names no rank."""
    for found in _OWN.finditer(key):
        if found.end() == len(key):
            return key[: key.rindex("@")]
    return None


def own_keys(slots: Iterable[SlotLayout]) -> set[str]:
    """Return the keys under which the ranks of one node save values of their own.

    Rank 0 saves its own value under the plain key. Such a key is known from a replicated one because other ranks of the
    node save theirs under the key with their rank.

    Args:
        slots: the layouts of the snapshots of all ranks of the node.
    """
    keys = {chunk.key for slot in slots for layout in slot.values() for chunk in layout.chunks}
    named = {key: plain for key in keys if (plain := plain_key(key)) is not None}
    return keys & (named.keys() | set(named.values()))


def own_runs(layout: TensorLayout, own: Collection[str]) -> Runs:
    """Return the chunks of a file whose keys are in `own`."""
    return as_runs(n for n, chunk in enumerate(layout.chunks) if chunk.key in own)


def as_runs(numbers: Iterable[int]) -> Runs:
    """Return rising numbers as runs."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return tuple(found)


def indexes(runs: Runs) -> set[int]:
    """Return the numbers in runs."""
    return {number for first, end in runs for number in range(first, end)}


def byte_ranges(layout: TensorLayout, runs: Runs) -> list[tuple[int, int]]:
    """Return begin and end, in bytes, of the chunks in `runs`; nothing for empty chunks."""
    found = []
    for first, end in runs:
        begin = layout.begins[first]
        last = layout.begins[end - 1] + layout.chunks[end - 1].nbytes
        if begin < last:
            found.append((begin, last))
    return found


def checked_runs(value: object, count: int, what: str) -> Runs:
    """Return runs of `count` chunks that another node has sent. Raises ValueError if they are malformed."""
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
    """Return the bytes of the chunks in `runs`, given by rank and group."""
    return sum(
        end - begin
        for rank, groups in runs.items()
        for group, chosen in groups.items()
        for begin, end in byte_ranges(slots[rank][group], chosen)
    )


def as_lists(runs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return runs as a message holds them."""
    return [list(run) for run in runs]

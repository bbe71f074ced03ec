"""Merge the shards of a distributed optimizer that some ranks saved, and cut them for another number of ranks.

For each parameter, a rank has saved a range of values, and tensors with one element for each of these: the master copy
and the optimizer's slots. Tensors of another shape (the number of steps) belong to the whole parameter. This module
imports no Megatron; everything is pure except that `merge` reads saved states through the function that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ReadState = Callable[[int, bool], Mapping[str, Any]]
"""Reads the saved state of a rank's Shards, given the rank and whether the values of its tensors are wanted."""
Path = tuple[str, ...]
"""the keys that lead to a value in a shard's state"""


class MergeError(ValueError):
    """The shards cannot be merged. The message says which, and why."""


@dataclass(frozen=True)
class ShardStretch:
    """Contiguous values of a parameter that one rank saved and that belong into the wanted shard."""

    rank: int
    """the rank that saved"""
    source: slice
    """indices in that rank's shard"""
    target: slice
    """indices in the wanted shard"""


@dataclass(frozen=True)
class Merged:
    """The state that is loaded in the place of one rank's saved state."""

    groups: Mapping[int, Any]
    """options of the optimizer's parameter groups that have a shard here, by number of the group"""
    shards: Mapping[str, Mapping[str, Any]]
    """states of the shards, by key"""


def stretches(wanted: Sequence[int], held: Mapping[int, Sequence[int]]) -> list[ShardStretch]:
    """Return which rank gives which part of a range of values.

    Args:
        wanted: the first index of the range, and the index after its last.
        held: the range that each rank saved, by rank.

    Raises:
        MergeError: a value was saved by no rank, or by two.
    """
    start, end = wanted
    at = start  # where the values that are found so far end
    is_contiguous = True
    found = []
    for rank, (first, last) in sorted(held.items(), key=lambda item: tuple(item[1])):
        begin = max(first, start)
        stop = min(last, end)
        if begin >= stop:
            continue
        is_contiguous = is_contiguous and begin == at
        source = slice(begin - first, stop - first)
        target = slice(begin - start, stop - start)
        found.append(ShardStretch(rank=rank, source=source, target=target))
        at = stop
    if not is_contiguous or at != end:
        ranges = ", ".join(f"{first} to {last} by rank {rank}" for rank, (first, last) in held.items())
        raise MergeError(f"of its values {start} to {end} each is to be saved once, and they were saved: {ranges:.300}")
    return found


def merge(wanted: Mapping[str, Sequence[int]], ranks: Collection[int], read_state: ReadState) -> Merged:
    """Put shards together from those that other ranks saved. Only one rank's tensors are in memory at a time.

    Args:
        wanted: the range of values of each wanted shard, by key.
        ranks: the ranks that saved.
        read_state: reads the state of a rank.

    Raises:
        MergeError: values are missing or saved twice, or the ranks do not agree.
    """
    cuts = {rank: read_state(rank, False)["shards"] for rank in ranks}
    plans = {}
    for key, span in wanted.items():
        held = {rank: shards[key]["range"] for rank, shards in cuts.items() if key in shards}
        try:
            plans[key] = stretches(span, held)
        except MergeError as error:
            raise MergeError(f"`{key}`: {error}") from None
    joined = {key: _Joined(key, span) for key, span in wanted.items()}
    groups: dict[int, Any] = {}
    for rank in sorted({stretch.rank for plan in plans.values() for stretch in plan}):
        saved = read_state(rank, True)
        for key, plan in plans.items():
            for stretch in plan:
                if stretch.rank == rank:
                    joined[key].copy_from(saved["shards"][key], stretch)
                    _note_group(groups, saved["shards"][key]["group"], saved["groups"])
    return Merged(groups=groups, shards={key: shard.entry() for key, shard in joined.items()})


def stands_for(here: Mapping[str, int], layouts: Sequence[Mapping[str, int]]) -> int:
    """Return the rank that saved with this rank's places in all groups but the data-parallel one.

    Args:
        here: the layout of this rank (inside.layout()).
        layouts: the layouts of the ranks that saved, by rank.

    Raises:
        MergeError: no rank had these places.
    """
    places = [name for name in here if name.endswith("_rank") and name != DATA_PARALLEL]
    alike = [rank for rank, then in enumerate(layouts) if all(then.get(name, 0) == here[name] for name in places)]
    if not alike:
        known = {name: here[name] for name in places}
        raise MergeError(f"none of the {len(layouts)} ranks that saved had the places {known} in their groups")
    by_place = {layouts[rank].get(DATA_PARALLEL, 0): rank for rank in reversed(alike)}
    count = 1 + max(then.get(DATA_PARALLEL, 0) for then in layouts)
    return by_place.get(here.get(DATA_PARALLEL, 0) % count, alike[0])


DATA_PARALLEL = "data_parallel_rank"
"""key of a layout: this rank's place in its data-parallel group"""


class _Joined:
    """A shard that is put together from those of several ranks."""

    def __init__(self, key: str, span: Sequence[int]) -> None:
        self._key = key
        self._span = list(span)
        self._cut: dict[Path, Tensor] = {}  # tensors with one element for each value of the shard
        self._whole: dict[Path, Any] = {}  # values that belong to the whole parameter

    def copy_from(self, entry: Mapping[str, Any], stretch: ShardStretch) -> None:
        """Copy a stretch from the shard that a rank saved. Raises MergeError where ranks do not agree."""
        first, last = entry["range"]
        is_first = not self._cut and not self._whole
        cut: dict[Path, Tensor] = {}
        whole: dict[Path, Any] = {}
        for path, value in _values(entry):
            is_cut = isinstance(value, Tensor) and tuple(value.shape) == (last - first,)
            (cut if is_cut else whole)[path] = value
        if is_first:
            size = self._span[1] - self._span[0]
            self._cut = {
                path: torch.empty(size, dtype=tensor.dtype, device=tensor.device) for path, tensor in cut.items()
            }
            self._whole = whole
        if cut.keys() != self._cut.keys() or not same(whole, self._whole):
            names = _differing(whole, self._whole)
            raise MergeError(f"`{self._key}`: the ranks that had saved it do not agree on {names}")
        for path, value in cut.items():
            if value.dtype != self._cut[path].dtype:
                raise MergeError(f"`{self._key}`: `{path[-1]}` is of {value.dtype} and of {self._cut[path].dtype}")
            self._cut[path][stretch.target].copy_(value[stretch.source])

    def entry(self) -> dict[str, Any]:
        """Return the state that a rank with this shard would have saved."""
        found: dict[str, Any] = {"range": self._span, "state": {}}
        for path, value in {**self._cut, **self._whole}.items():
            holder = found["state"] if path[0] == "state" else found
            holder[path[-1]] = value
        return found


def _values(entry: Mapping[str, Any]) -> list[tuple[Path, Any]]:
    """Return the values in the state of a shard with their paths, without the range."""
    found: list[tuple[Path, Any]] = [(("state", slot), value) for slot, value in entry["state"].items()]
    found += [((name,), value) for name, value in entry.items() if name not in ("range", "state")]
    return found


def _note_group(groups: dict[int, Any], number: int, saved: Sequence[Any]) -> None:
    """Add the options of a parameter group to `groups`. Raises MergeError where ranks do not agree on these."""
    if not same(groups.setdefault(number, saved[number]), saved[number]):
        raise MergeError(f"the ranks that had saved them do not agree on the optimizer's parameter group {number}")


def _differing(now: Mapping[Path, Any], before: Mapping[Path, Any]) -> str:
    """Return the names of values that differ, for a sentence."""
    names = {path[-1] for path in now.keys() | before.keys() if not same(now.get(path), before.get(path))}
    return ", ".join(f"`{name}`" for name in sorted(names)) or "its tensors"


def same(left: Any, right: Any) -> bool:
    """Whether two saved values are equal bit for bit: tensors, mappings, sequences, and plain values."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        alike = (left.dtype, left.shape) == (right.dtype, right.shape)
        return alike and left.reshape(-1).view(torch.uint8).equal(right.reshape(-1).view(torch.uint8))
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same(value, right[key]) for key, value in left.items())
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and bool(left == right)

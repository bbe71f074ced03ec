"""Shards of parameters, as some ranks have saved them, cut anew for another number of ranks. It needs no Megatron.

A rank has saved of each parameter a range of its values, and with it tensors of as many values: the master copy, and
the optimizer's slots. What has another shape (the count of steps) belongs to all of the parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Look = Callable[[int, bool], Mapping[str, Any]]
"""(a rank that saved, whether the tensors' values are wanted) -> what its Shards have said of themselves"""
Path = tuple[str, ...]


class MergeError(ValueError):
    """The shards cannot be merged; the message says which, and why."""


@dataclass(frozen=True)
class ShardStretch:
    """Values that one rank had saved of a parameter, and where they go."""

    rank: int
    source: slice  # of the shard that the rank had
    target: slice  # of the shard that is wanted


@dataclass(frozen=True)
class Merged:
    """What takes the place of what one rank had saved."""

    groups: Mapping[int, Any]  # values of the optimizer's groups that have a shard here, by number
    shards: Mapping[str, Mapping[str, Any]]


def stretches(wanted: Sequence[int], held: Mapping[int, Sequence[int]]) -> list[ShardStretch]:
    """What each rank gives of the range `wanted`; held: rank -> the range that it had.

    Raises MergeError where a value was saved by no rank, or by two.
    """
    start, end = wanted
    at, once, found = start, True, []
    for rank, (first, last) in sorted(held.items(), key=lambda one: tuple(one[1])):
        begin, stop = max(first, start), min(last, end)
        if begin >= stop:
            continue
        once = once and begin == at
        found.append(ShardStretch(rank, slice(begin - first, stop - first), slice(begin - start, stop - start)))
        at = stop
    if not once or at != end:
        ranges = ", ".join(f"{first} to {last} by rank {rank}" for rank, (first, last) in held.items())
        raise MergeError(f"of its values {start} to {end} each is to be saved once, and they were saved: {ranges:.300}")
    return found


def merge(wanted: Mapping[str, Sequence[int]], ranks: Collection[int], look: Look) -> Merged:
    """The shards of the ranges `wanted`, out of those that `ranks` have saved, one rank after the other.

    Raises MergeError.
    """
    cuts = {rank: look(rank, False)["shards"] for rank in ranks}
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
        saved = look(rank, True)
        for key, plan in plans.items():
            for stretch in plan:
                if stretch.rank == rank:
                    joined[key].take(saved["shards"][key], stretch)
                    _note_group(groups, saved["shards"][key]["group"], saved["groups"])
    return Merged(groups, {key: one.entry() for key, one in joined.items()})


def stands_for(here: Mapping[str, int], layouts: Sequence[Mapping[str, int]]) -> int:
    """The rank that had this rank's places in all groups but the data-parallel one. Raises MergeError.

    here: of this rank, and layouts: of the ranks that saved, as inside.layout() has them.
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
"""the place in the data-parallel group, in a layout"""


class _Joined:
    """A shard that is put together from those of several ranks."""

    def __init__(self, key: str, span: Sequence[int]) -> None:
        self._key, self._span = key, list(span)
        self._cut: dict[Path, Tensor] = {}  # of as many values as the shard
        self._whole: dict[Path, Any] = {}  # of all of the parameter

    def take(self, entry: Mapping[str, Any], stretch: ShardStretch) -> None:
        """Copy what a rank has given of it."""
        first, last = entry["range"]
        begins = not self._cut and not self._whole
        cut, whole = dict[Path, Tensor](), dict[Path, Any]()
        for path, value in _values(entry):
            is_cut = isinstance(value, Tensor) and tuple(value.shape) == (last - first,)
            (cut if is_cut else whole)[path] = value
        if begins:
            size = self._span[1] - self._span[0]
            self._cut = {path: torch.empty(size, dtype=one.dtype, device=one.device) for path, one in cut.items()}
            self._whole = whole
        if cut.keys() != self._cut.keys() or not same(whole, self._whole):
            raise MergeError(f"`{self._key}`: the ranks that had saved it do not agree on {_told(whole, self._whole)}")
        for path, value in cut.items():
            if value.dtype != self._cut[path].dtype:
                raise MergeError(f"`{self._key}`: `{path[-1]}` is of {value.dtype} and of {self._cut[path].dtype}")
            self._cut[path][stretch.target].copy_(value[stretch.source])

    def entry(self) -> dict[str, Any]:
        """As a rank that had it would have saved it."""
        found: dict[str, Any] = {"range": self._span, "state": {}}
        for path, value in {**self._cut, **self._whole}.items():
            holder = found["state"] if path[0] == "state" else found
            holder[path[-1]] = value
        return found


def _values(entry: Mapping[str, Any]) -> list[tuple[Path, Any]]:
    found: list[tuple[Path, Any]] = [(("state", slot), value) for slot, value in entry["state"].items()]
    found += [((name,), value) for name, value in entry.items() if name not in ("range", "state")]
    return found


def _note_group(groups: dict[int, Any], number: int, saved: Sequence[Any]) -> None:
    if not same(groups.setdefault(number, saved[number]), saved[number]):
        raise MergeError(f"the ranks that had saved them do not agree on the optimizer's parameter group {number}")


def _told(now: Mapping[Path, Any], before: Mapping[Path, Any]) -> str:
    names = {path[-1] for path in now.keys() | before.keys() if not same(now.get(path), before.get(path))}
    return ", ".join(f"`{name}`" for name in sorted(names)) or "its tensors"


def same(one: Any, other: Any) -> bool:
    """Whether two values that were saved are the same, bit for bit."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        alike = (one.dtype, one.shape) == (other.dtype, other.shape)
        return alike and one.reshape(-1).view(torch.uint8).equal(other.reshape(-1).view(torch.uint8))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)

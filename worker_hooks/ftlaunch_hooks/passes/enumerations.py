"""Adds to the count of an enumerate() around batches: after a resume it counts on behind the batches had before it.

`enumerate` has no way to be given another count. Its count lies behind the head of its object, at a place that only
CPython's layout defines. The count is written there if everything around it is as that layout has it, and read back by
`__reduce__`.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Collection, Iterator
from itertools import islice
from types import FrameType, GeneratorType
from typing import Any

_MAX_DEPTH = 4  # of nested iterators: enumerate(tqdm(batches))
_WORD = ctypes.sizeof(ctypes.c_ssize_t)


def find_enumerations(batches: object, frames: Collection[FrameType]) -> list[enumerate[Any]]:
    """Return each enumerate() that is asking an iterator for an item now, directly or through other iterators.

    Args:
        batches: the iterator.
        frames: of generators, now running, that hand on the items one by one: a progress bar's, or a logger's.
    """
    found = [counted for counted in gc.get_objects() if type(counted) is enumerate]
    return [counted for counted in found if any(_leads_to(inner, batches, frames) for inner in _within(counted))]


def _within(counted: enumerate[Any]) -> Iterator[object]:
    """Yield the iterator that an enumerate() asks, and the iterators that are asked in turn.

    Only iterators held by iterators are followed, because these are what `next` asks. SavedElsewhere.is_read_by also
    enters frames, containers and objects: it may find too much, and would find an enumerate() over anything that merely
    has the batches within reach.
    """
    ahead: list[object] = [next(_arguments(counted))]
    for _ in range(_MAX_DEPTH):
        yield from ahead
        held = [inner for iterator in ahead for inner in gc.get_referents(iterator)]
        held += [inner for value in held if isinstance(value, tuple) for inner in value]  # zip() has a tuple of them
        ahead = [value for value in held if hasattr(type(value), "__next__")]


def _leads_to(iterator: object, batches: object, frames: Collection[FrameType]) -> bool:
    return iterator is batches or (isinstance(iterator, GeneratorType) and iterator.gi_frame in frames)


def can_advance() -> bool:
    """Whether this Python's enumerate() can be given another count. Tried with one of our own."""
    trial = enumerate(iter("ab"), 3)
    return advance(trial, 4) and next(trial) == (7, "a") and next(trial) == (8, "b")


def advance(counted: enumerate[Any], by: int) -> bool:
    """Add a number of items to the count of an enumerate(). Returns False, with nothing changed, for another layout."""
    if sys.implementation.name != "cpython":
        return False
    before = _count(counted)
    address = id(counted) + object.__basicsize__
    (iterator,) = islice(_arguments(counted), 1)
    is_large_enough = type(counted).__basicsize__ >= object.__basicsize__ + 2 * _WORD
    if not is_large_enough or _read(address) != before or _read(address + _WORD) != id(iterator):
        return False
    ctypes.c_ssize_t.from_address(address).value = before + by
    if _count(counted) == before + by:
        return True
    ctypes.c_ssize_t.from_address(address).value = before
    return False


def _arguments(counted: enumerate[Any]) -> Iterator[Any]:
    """Yield the iterator that an enumerate() asks, and its count."""
    yield from counted.__reduce__()[1]


def _count(counted: enumerate[Any]) -> int:
    _, count = _arguments(counted)
    return int(count)


def _read(address: int) -> int:
    return ctypes.c_ssize_t.from_address(address).value

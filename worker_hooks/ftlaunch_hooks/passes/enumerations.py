"""An enumerate() over batches goes on at its number where its first batches were had in an earlier life of the job.

`enumerate` has no way to be given another count. Its count lies behind the head of its object, which only CPython's
layout says: it is written there where everything around it is as that layout has it, and read back by `__reduce__`.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Collection, Iterator
from itertools import islice
from types import FrameType, GeneratorType
from typing import Any

_DEEP = 4  # iterators within each other: enumerate(tqdm(batches))
_WORD = ctypes.sizeof(ctypes.c_ssize_t)


def find_enumerations(batches: object, frames: Collection[FrameType]) -> list[enumerate[Any]]:
    """Return each enumerate() that is asking an iterator for an item now, by way of other iterators, too.

    frames: of generators, under way now, that hand on the items one by one: a progress bar's, or a logger's.
    """
    found = [one for one in gc.get_objects() if type(one) is enumerate]
    return [one for one in found if any(_leads_to(inner, batches, frames) for inner in _within(one))]


def _within(counted: enumerate[Any]) -> Iterator[object]:
    """What an enumerate() asks, and the iterators that are asked by it in turn."""
    ahead: list[object] = [next(_arguments(counted))]
    for _ in range(_DEEP):
        yield from ahead
        held = [inner for one in ahead for inner in gc.get_referents(one)]
        held += [inner for one in held if isinstance(one, tuple) for inner in one]  # as zip() holds its iterators
        ahead = [one for one in held if hasattr(type(one), "__next__")]


def _leads_to(one: object, batches: object, frames: Collection[FrameType]) -> bool:
    return one is batches or (isinstance(one, GeneratorType) and one.gi_frame in frames)


def can_advance() -> bool:
    """Whether this Python's enumerate() can be given another count: tried with one of our own."""
    trial = enumerate(iter("ab"), 3)
    return advance(trial, 4) and next(trial) == (7, "a") and next(trial) == (8, "b")


def advance(counted: enumerate[Any], by: int) -> bool:
    """Add to the count of an enumerate(). Return False, with nothing changed, for a Python with another layout."""
    if sys.implementation.name != "cpython":
        return False
    before = _count(counted)
    place = id(counted) + object.__basicsize__
    (iterator,) = islice(_arguments(counted), 1)
    inside = type(counted).__basicsize__ >= object.__basicsize__ + 2 * _WORD
    if not inside or _read(place) != before or _read(place + _WORD) != id(iterator):
        return False
    ctypes.c_ssize_t.from_address(place).value = before + by
    if _count(counted) == before + by:
        return True
    ctypes.c_ssize_t.from_address(place).value = before
    return False


def _arguments(counted: enumerate[Any]) -> Iterator[Any]:
    """The iterator that an enumerate() asks, and its count."""
    yield from counted.__reduce__()[1]


def _count(counted: enumerate[Any]) -> int:
    _, count = _arguments(counted)
    return int(count)


def _read(place: int) -> int:
    return ctypes.c_ssize_t.from_address(place).value

"""Read, compare and put back the generators from which making a batch may draw.

These are the global generators, and the generators that the loader, its data set and its samplers hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy
import torch

from ftlaunch_hooks.passes.held_generators import HeldGenerators
from ftlaunch_hooks.state.random_numbers import shared as random_numbers


class Reading(NamedTuple):
    """The states of the generators at one moment."""

    shared: random_numbers.Raw
    """the global generators"""
    held: dict[str, dict[str, Any]]
    """the other generators' states, by the dotted names that lead to them"""


class Numbers:
    """The generators of one process."""

    def __init__(self, *makers: Any) -> None:
        """Find the generators that `makers` hold: loaders, data sets, collators (HeldGenerators)."""
        self._held = HeldGenerators(*makers)

    def read(self) -> Reading:
        """Return the present states."""
        return Reading(random_numbers.read_raw(), self._held.states())

    def of_samplers(self) -> set[str]:
        """Return the names of generators that samplers hold, without the names that a data set has for these."""
        return {path for path, _ in self._held if path.split(".")[-2].endswith("sampler")}

    def put_back(self, saved: Mapping[str, Any]) -> None:
        """Put back the states that `to_save` returned."""
        random_numbers.put_back({**saved, "own": []})
        self._held.put_back(saved["held"])


def to_save(reading: Reading) -> dict[str, Any]:
    """Return a reading in the form in which an attached object saves it."""
    return {**random_numbers.to_save(reading.shared), "held": reading.held}


def drawn_from(before: Reading, after: Reading) -> set[str]:
    """Return the names of the generators from which numbers were drawn between two readings."""
    names = {
        name
        for name in random_numbers.Raw._fields
        if not _equal(getattr(before.shared, name), getattr(after.shared, name))
    }
    held = before.held.keys() | after.held.keys()
    return names | {path for path in held if not _equal(before.held.get(path), after.held.get(path))}


def _equal(one: Any, other: Any) -> bool:
    """Whether two states are equal: numbers, tensors, arrays, and mappings and short tuples of these."""
    if one is other:
        return True
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, numpy.ndarray):
        return numpy.array_equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    if (
        isinstance(one, tuple) and isinstance(other, tuple) and len(one) < 10
    ):  # a longer one is the words of Python's generator
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)

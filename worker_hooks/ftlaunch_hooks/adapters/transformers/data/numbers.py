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
    """Return the names of the generators from which numbers were drawn between two readings.

    The generator of an accelerator that has come into use in between does not count.
    """
    shared = [
        name for name in random_numbers.Raw._fields if name != "accelerator" or before.shared.accelerator is not None
    ]
    names = {name for name in shared if not _equal(getattr(before.shared, name), getattr(after.shared, name))}
    held = before.held.keys() | after.held.keys()
    return names | {path for path in held if not _equal(before.held.get(path), after.held.get(path))}


def _equal(left: Any, right: Any) -> bool:
    """Whether two states are equal: numbers, tensors, arrays, and mappings and short tuples of these."""
    if left is right:
        return True
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, numpy.ndarray):
        return numpy.array_equal(left, right)
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(_equal(left[name], right[name]) for name in left)
    # A longer tuple is the words of Python's generator.
    if isinstance(left, tuple) and isinstance(right, tuple) and len(left) < 10:
        return len(left) == len(right) and all(map(_equal, left, right))
    return bool(left == right)

"""The random numbers that making a batch may draw: of the global generators, and of those that its makers hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy
import torch

from ftlaunch_hooks.passes.held_generators import HeldGenerators
from ftlaunch_hooks.state.random_numbers import shared as random_numbers


class Reading(NamedTuple):
    """The states at one moment."""

    shared: random_numbers.Raw
    held: dict[str, dict[str, Any]]  # by the names that lead to a generator


class Numbers:
    """Reads the states of the generators, and puts them back."""

    def __init__(self, *makers: Any) -> None:
        """makers: of the batches, see HeldGenerators."""
        self._held = HeldGenerators(*makers)

    def read(self) -> Reading:
        """Now."""
        return Reading(random_numbers.read_raw(), self._held.states())

    def of_samplers(self) -> set[str]:
        """Names of the generators that samplers hold; one that a data set holds as well has another name there."""
        return {path for path, _ in self._held if path.split(".")[-2].endswith("sampler")}

    def put_back(self, saved: Mapping[str, Any]) -> None:
        """What `to_save` has made."""
        random_numbers.put_back({**saved, "own": []})
        self._held.put_back(saved["held"])


def to_save(reading: Reading) -> dict[str, Any]:
    """A reading as an attached object saves it."""
    return {**random_numbers.to_save(reading.shared), "held": reading.held}


def drawn_from(before: Reading, after: Reading) -> set[str]:
    """The generators of which numbers were drawn between two readings, by name."""
    names = {
        name
        for name, one, other in zip(("python", "torch", "numpy"), before.shared, after.shared, strict=True)
        if not _equal(one, other)
    }
    held = before.held.keys() | after.held.keys()
    return names | {path for path in held if not _equal(before.held.get(path), after.held.get(path))}


def _equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, numpy.ndarray):
        return numpy.array_equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) < 10:  # a longer one is Python's, of integers
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)

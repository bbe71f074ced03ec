"""The random numbers that making a batch may draw: of the global generators, and of those that its makers hold."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy
import torch

from ftlaunch_hooks.adapters import random_numbers
from ftlaunch_hooks.state.random_numbers import generators

_WITHIN = (
    *("base_dataloader", "batch_sampler", "sampler", "dataset", "collate_fn", "collate", "data_collator", "__self__"),
    "synchronized_generator",
)
_DEEP = 5
_KINDS = {random.Random, torch.Generator, numpy.random.Generator, numpy.random.RandomState}
_MADE: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "random.Random": lambda saved: random.Random(0),  # noqa: S311 - not for secrets
    "torch.Generator": lambda saved: torch.Generator(saved["device"]),
    "numpy.random.RandomState": lambda saved: numpy.random.RandomState(0),
    "numpy.random.Generator": lambda saved: numpy.random.Generator(
        getattr(numpy.random, saved["state"]["bit_generator"])(0)
    ),
}


class Reading(NamedTuple):
    """The states at one moment."""

    shared: random_numbers.Raw
    held: dict[str, dict[str, Any]]  # by the names that lead to a generator


class Numbers:
    """Reads the states of the generators, and puts them back."""

    def __init__(self, *makers: Any) -> None:
        """makers: of the batches: a loader, or a data set and a collator. What lies within them is looked at, too."""
        found = [one for number, maker in enumerate(makers) for one in _within(str(number), maker)]
        self._holders = dict(_once(found))

    def read(self) -> Reading:
        """Now."""
        return Reading(random_numbers.read_raw(), self._states())

    def glance(self) -> Reading:
        """Now, in less time; not to be saved."""
        return Reading(random_numbers.glance(), self._states())

    def of_samplers(self) -> set[str]:
        """Names of the generators that samplers hold; one that a data set holds as well has another name there."""
        return {path for path, _ in self._held() if path.split(".")[-2].endswith("sampler")}

    def _states(self) -> dict[str, dict[str, Any]]:
        return {path: generators.state_of(one) for path, one in self._held()}

    def put_back(self, saved: Mapping[str, Any]) -> None:
        """What `to_save` has made. A generator that its holder makes when it needs it first is made here."""
        random_numbers.put_back({**saved, "own": []})
        now = dict(self._held())
        for path, state in saved["held"].items():
            holder, _, name = path.rpartition(".")
            if path not in now and getattr(self._holders.get(holder), name, self) is None:
                now[path] = _MADE[state["kind"]](state)
                _give(self._holders[holder], name, now[path])
            if path in now and generators.kind_of(now[path]) == state["kind"]:
                generators.put_back(now[path], state)

    def _held(self) -> Iterator[tuple[str, Any]]:
        for path, holder in self._holders.items():
            within = getattr(holder, "__dict__", {})
            if _KINDS.isdisjoint(map(type, list(within.values()))):  # nearly always, and twice in every step
                continue
            for name, value in list(within.items()):
                if type(value) in _KINDS:
                    yield f"{path}.{name}", value


def _give(holder: Any, name: str, made: Any) -> None:
    """Set an attribute as the holder would. Transformers' collators make a generator anew in a process not noted so."""
    setattr(holder, name, made)
    if hasattr(holder, f"_{name}_pid"):
        setattr(holder, f"_{name}_pid", os.getpid())


def to_save(reading: Reading) -> dict[str, Any]:
    """A reading as an attached object saves it."""
    return {**random_numbers.cooked(reading.shared), "held": reading.held}


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


def _within(path: str, maker: Any, deep: int = _DEEP) -> Iterator[tuple[str, Any]]:
    """What makes batches, and what is within it."""
    yield path, maker
    for name in _WITHIN if deep else ():
        one = getattr(maker, name, None)
        if one is not None and not isinstance(one, ModuleType):
            yield from _within(f"{path}.{name}", one, deep - 1)


def _once(found: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Each thing under the first of its names."""
    seen = set[int]()
    for path, one in found:
        if id(one) not in seen:
            seen.add(id(one))
            yield path, one

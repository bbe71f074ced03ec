"""Generators of random numbers that the makers of batches hold: data sets, collators, samplers, what is within them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy
import torch

from ftlaunch_hooks.state.random_numbers import generators
from ftlaunch_hooks.state.random_numbers.made_generators import make, unmake

_WITHIN = (
    *("base_dataloader", "batch_sampler", "sampler", "dataset", "collate_fn", "collate", "data_collator", "__self__"),
    "synchronized_generator",
)
_DEEP = 5
_KINDS = {random.Random, torch.Generator, numpy.random.Generator, numpy.random.RandomState}


class HeldGenerators:
    """Reads their states, and puts them back."""

    def __init__(self, *makers: Any) -> None:
        """makers: of the batches: a loader, or a data set and a collator. What lies within them is looked at, too."""
        found = [one for number, maker in enumerate(makers) for one in _within(str(number), maker)]
        self._holders = dict(_once(found))

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Each that there is now, and the names that lead to it."""
        for path, holder in self._holders.items():
            within = getattr(holder, "__dict__", {})
            if _KINDS.isdisjoint(map(type, list(within.values()))):  # nearly always, and twice in every step
                continue
            for name, value in list(within.items()):
                if type(value) in _KINDS:
                    yield f"{path}.{name}", value

    def states(self) -> dict[str, dict[str, Any]]:
        """Of all, by the names that lead to them."""
        return {path: generators.state_of(one) for path, one in self}

    def put_back(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """The reverse of `states`. A generator that its holder makes when it needs it first is made here, or taken away
        where it had not made it.
        """
        now = dict(self)
        for path in now.keys() - states.keys():
            holder, _, name = path.rpartition(".")
            unmake(self._holders[holder], name)
        for path, state in states.items():
            holder, _, name = path.rpartition(".")
            if path not in now and getattr(self._holders.get(holder), name, self) is None:
                make(self._holders[holder], name, state)
                now[path] = getattr(self._holders[holder], name)
            if path in now and generators.kind_of(now[path]) == state["kind"]:
                generators.put_back(now[path], state)


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

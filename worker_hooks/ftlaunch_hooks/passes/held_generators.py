"""Generators of random numbers that the makers of batches hold: data sets, collators, samplers, what is within them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy  # noqa: F401 - so that its generators are known

from ftlaunch_hooks.state.random_numbers import generators
from ftlaunch_hooks.state.random_numbers.made_generators import make, unmake
from ftlaunch_hooks.state.random_numbers.walk import generator_kinds, generators_within

_WITHIN = (
    *("base_dataloader", "batch_sampler", "sampler", "dataset", "collate_fn", "collate", "data_collator", "__self__"),
    "synchronized_generator",
)
_DEEP = 5
_KINDS = generator_kinds()


class HeldGenerators:
    """Reads their states, and puts them back."""

    def __init__(self, *makers: Any) -> None:
        """makers: of the batches: a loader, or a data set and a collator. What lies within them is looked at, too."""
        found = [one for number, maker in enumerate(makers) for one in _within(str(number), maker)]
        self._holders = dict(_once(found))
        self._deep = dict(self._deeper())  # in lists and closures: as they are now

    def _deeper(self) -> Iterator[tuple[str, Any]]:
        """Generators that lie deeper than in an attribute of a holder."""
        known = {id(one) for _, one in self._direct()}
        for path, holder in list(self._holders.items()):
            for name, one in generators_within(path, holder):
                if id(one) not in known:
                    known.add(id(one))
                    yield name, one

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Each that there is now, and the names that lead to it."""
        yield from self._direct()
        yield from self._deep.items()

    def _direct(self) -> Iterator[tuple[str, Any]]:
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
        for path in now.keys() - states.keys() - self._deep.keys():
            holder, _, name = path.rpartition(".")
            unmake(self._holders[holder], name)
        for path, state in states.items():
            holder, _, name = path.rpartition(".")
            if path not in now and holder in self._holders and getattr(self._holders[holder], name, self) is None:
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

"""Random number generators that the makers of batches hold: data sets, collators, samplers, and what is in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy  # noqa: F401 - so that its generators are known

from ftlaunch_hooks.state.random_numbers import generators
from ftlaunch_hooks.state.random_numbers.made_generators import make, unmake
from ftlaunch_hooks.state.random_numbers.walk import generators_within, kinds_by_class, nested

# attributes in which the makers of batches hold each other
_NESTED = (
    *("base_dataloader", "batch_sampler", "sampler", "dataset", "collate_fn", "collate", "data_collator", "__self__"),
    "synchronized_generator",
)
_MAX_DEPTH = 5
_KINDS = frozenset(kinds_by_class())


class HeldGenerators:
    """Reads the states of held generators, and puts them back."""

    def __init__(self, *makers: Any) -> None:
        """Search the makers of batches, and what lies within them: a loader, or a data set and a collator."""
        found = [
            entry
            for number, maker in enumerate(makers)
            for entry in nested(str(number), maker, attributes=_NESTED, depth=_MAX_DEPTH)
        ]
        self._holders = dict(_once(found))
        self._deep = dict(self._deeper())  # those in lists and closures, which are searched only once

    def _deeper(self) -> Iterator[tuple[str, Any]]:
        """Yield generators that lie deeper than in an attribute of a holder."""
        known = {id(generator) for _, generator in self._direct()}
        for path, holder in list(self._holders.items()):
            for name, generator in generators_within(path, holder):
                if id(generator) not in known:
                    known.add(id(generator))
                    yield name, generator

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield each generator that exists now, with the path that leads to it."""
        yield from self._direct()
        yield from self._deep.items()

    def _direct(self) -> Iterator[tuple[str, Any]]:
        for path, holder in self._holders.items():
            attributes = getattr(holder, "__dict__", {})
            # This runs twice in every step, and most holders have no generator.
            if _KINDS.isdisjoint(map(type, list(attributes.values()))):
                continue
            for name, value in list(attributes.items()):
                if type(value) in _KINDS:
                    yield f"{path}.{name}", value

    def states(self) -> dict[str, dict[str, Any]]:
        """Return the states of all generators, by the paths that lead to them."""
        return {path: generators.state_of(generator) for path, generator in self}

    def put_back(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Put the generators where `states` found them.

        A generator that its holder makes only when needed is made here, or removed if the holder had not made it then.
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


def _once(found: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield each object under the first of its paths."""
    seen: set[int] = set()
    for path, maker in found:
        if id(maker) not in seen:
            seen.add(id(maker))
            yield path, maker

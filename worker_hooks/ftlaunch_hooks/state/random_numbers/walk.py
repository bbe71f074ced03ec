"""Walks over objects that make batches: loaders, samplers, data sets, collators, and what lies in them.

`nested` finds the makers within each other. `generators_within` finds random number generators in a maker: in
attributes, lists, dicts, closures and bound methods, read from the objects' own dicts, so that no code of the script
runs.

Two parts of the hooks build on these walks, and give a generator different names. generators.py reads the variables of
the script once, at attach(), and names what is found as the script would (`loader.sampler.generator`).
passes/held_generators.py keeps the makers of one pass, reads their attributes twice in each step, and numbers the
makers (`0.batch_sampler.sampler.generator`). Both names are keys of saved states, so neither may become the other.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor

_MAX_DEPTH = 5  # reaches a transform in the list of a Compose of a data set in a Subset
_MAX_ITEMS = 100  # of a list or a dict that is searched: a list of samples may have millions
_MAX_OBJECTS = 2000  # of one walk
_OPAQUE = (str, bytes, int, float, type(None), type, ModuleType, BuiltinFunctionType, Tensor)


def kinds_by_class() -> dict[type, str]:
    """Return the name of each class of generators whose state is known; of NumPy's only where NumPy is imported."""
    kinds: dict[type, str] = {random.Random: "random.Random", torch.Generator: "torch.Generator"}
    if (numpy := sys.modules.get("numpy")) is not None:
        kinds[numpy.random.Generator] = "numpy.random.Generator"
        kinds[numpy.random.RandomState] = "numpy.random.RandomState"
    return kinds


def nested(path: str, maker: Any, attributes: Sequence[str], depth: int) -> Iterator[tuple[str, Any]]:
    """Yield a maker of batches and the makers within, each with every path that leads to it.

    Args:
        path: path of the maker.
        maker: a loader, sampler, data set or collator.
        attributes: names of the attributes in which makers hold each other; read by getattr, as wrappers answer for
            what they wrap.
        depth: number of makers that may be entered from here.
    """
    yield path, maker
    for name in attributes if depth else ():
        inner = getattr(maker, name, None)
        if inner is not None and not isinstance(inner, ModuleType):
            yield from nested(f"{path}.{name}", inner, attributes=attributes, depth=depth - 1)


def generators_within(path: str, holder: Any) -> Iterator[tuple[str, Any]]:
    """Yield each generator that a holder holds, down to a limit, under the shortest name that leads to it."""
    kinds = kinds_by_class()
    seen = {id(holder)}
    ahead = [(path, holder)]
    for _ in range(_MAX_DEPTH):
        following = []
        for name, container in ahead:
            for key, value in _members(container):
                if id(value) in seen or len(seen) > _MAX_OBJECTS:
                    continue
                seen.add(id(value))
                if type(value) in kinds:
                    yield f"{name}.{key}", value
                elif not isinstance(value, _OPAQUE):
                    following.append((f"{name}.{key}", value))
        ahead = following


def _members(holder: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of what lies directly in a holder."""
    if isinstance(holder, dict):
        if len(holder) <= _MAX_ITEMS:
            yield from ((str(key), value) for key, value in list(holder.items()))
    elif isinstance(holder, (list, tuple, set)):
        if len(holder) <= _MAX_ITEMS:
            yield from ((str(number), value) for number, value in enumerate(list(holder)))
    elif isinstance(holder, MethodType):
        yield "__self__", holder.__self__
    elif isinstance(holder, FunctionType):
        yield from _enclosed(holder)
    else:
        try:
            yield from list(object.__getattribute__(holder, "__dict__").items())
        except AttributeError:  # it has no dict of its own
            return


def _enclosed(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # the cell is empty so far
            continue

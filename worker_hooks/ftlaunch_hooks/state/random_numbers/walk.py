"""The walk that finds generators in objects that make batches: in attributes, lists, dicts, closures and bound methods.

The walk runs no code of the script: attributes are read from the objects' own dicts.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor

_MAX_DEPTH = 5  # reaches a transform in the list of a Compose of a data set in a Subset
_MAX_ITEMS = 100  # of a list or a dict that is searched: a list of samples may have millions
_MAX_OBJECTS = 2000  # of one walk
_OPAQUE = (str, bytes, int, float, type(None), type, ModuleType, BuiltinFunctionType, Tensor)


def generator_kinds() -> set[type]:
    """Return the classes of generators whose state is known; NumPy's only where NumPy is imported."""
    kinds: set[type] = {random.Random, torch.Generator}
    if (numpy := sys.modules.get("numpy")) is not None:
        kinds |= {numpy.random.Generator, numpy.random.RandomState}
    return kinds


def generators_within(path: str, holder: Any) -> Iterator[tuple[str, Any]]:
    """Yield each generator that a holder holds, down to a limit, under the shortest name that leads to it."""
    kinds = generator_kinds()
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

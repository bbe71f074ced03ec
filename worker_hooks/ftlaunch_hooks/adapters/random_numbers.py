"""The states of the global random number generators that loaders of data draw from, and of generators given to them."""

from __future__ import annotations

import random
import sys
from array import array
from collections.abc import Iterable
from typing import Any

import torch

from ftlaunch_hooks.adapters import numpy_state
from ftlaunch_hooks.adapters.python_state import PythonGlances

State = dict[str, Any]
Raw = tuple[Any, Any, Any]

_of_python, _of_numpy = PythonGlances(), numpy_state.Glances()


def read_raw() -> Raw:
    """Of Python's, torch's on the CPU, and NumPy's where it is imported. Raises AttachError: see numpy_state.py."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), torch.get_rng_state(), None if numpy is None else numpy_state.read(numpy)


def glance() -> Raw:
    """As `read_raw`, to be compared and not to be saved: see numpy_state.py."""
    numpy = sys.modules.get("numpy")
    return _of_python.look(), torch.get_rng_state(), None if numpy is None else _of_numpy.look(numpy)


def alike(one: Raw, other: Raw) -> bool:
    """Whether nothing was drawn between two readings."""
    if one[0] != other[0] or not torch.equal(one[1], other[1]):
        return False
    if one[2] is other[2] or one[2] is None or other[2] is None:  # NumPy was imported in between
        return True
    return one[2][2:] == other[2][2:] and bool((one[2][1] == other[2][1]).all())


def cooked(raw: Raw) -> State:
    """As an attached object may save it."""
    (version, words, gauss), of_torch, of_numpy = raw
    state: State = {
        "python": (version, torch.frombuffer(array("q", words), dtype=torch.int64), gauss),
        "torch": of_torch,
        "own": [],
    }
    if of_numpy is not None:
        kind, keys, *rest = of_numpy
        state["numpy"] = (kind, torch.from_numpy(keys.astype("int64")), *rest)
    return state


def read(own: Iterable[torch.Generator] = ()) -> State:
    """The states of the global generators, and those of `own`, in order."""
    return {**cooked(read_raw()), "own": [generator.get_state() for generator in own]}


def put_back(state: State, own: Iterable[torch.Generator] = ()) -> None:
    """The reverse of `read`."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    torch.set_rng_state(state["torch"])
    for generator, saved in zip(own, state["own"], strict=False):
        generator.set_state(saved)
    if "numpy" in state and (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, *rest = state["numpy"]
        numpy.random.set_state((kind, keys.numpy().astype("uint32"), *rest))

"""The states of the global random number generators that loaders of data draw from, and of generators given by name."""

from __future__ import annotations

import random
import sys
from array import array
from collections.abc import Iterable
from typing import Any

import torch

State = dict[str, Any]


def read(own: Iterable[torch.Generator] = ()) -> State:
    """Python's, torch's on the CPU, NumPy's where it is imported, and those of `own`, in order."""
    version, words, gauss = random.getstate()
    state: State = {
        "python": (version, torch.frombuffer(array("q", words), dtype=torch.int64), gauss),
        "torch": torch.get_rng_state(),
        "own": [generator.get_state() for generator in own],
    }
    if (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, *rest = numpy.random.get_state()
        state["numpy"] = (kind, torch.from_numpy(keys.astype("int64")), *rest)
    return state


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

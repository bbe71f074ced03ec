"""All random number generators of a rank: Python's, NumPy's, torch's on CPU and accelerators, and the script's own.

`RankState` reads and puts back their states in the training thread.
"""

from __future__ import annotations

import random
import sys
from array import array
from typing import Any

import torch
from torch import Tensor

from ftlaunch_hooks.state.random_numbers import accelerators, shared
from ftlaunch_hooks.state.random_numbers.generators import OwnGenerators


class Generators:
    """All generators in use. The state of Python's is converted again only after numbers were drawn."""

    def __init__(self, own: OwnGenerators) -> None:
        """Take the generators that the script has made itself."""
        self.own = own
        self._python: tuple[int, ...] = ()
        self._words = torch.empty(0, device="cpu")

    def state(self) -> dict[str, Any]:
        """Return the states of the generators: tensors, tuples and numbers that `encode` takes.

        NumPy's state is read only if NumPy has been imported, those of an accelerator only if it is in use. Then the
        states of all its devices that the process sees are read: a state is a seed and an offset on the host.
        """
        version, words, gauss = random.getstate()
        if words != self._python:
            self._python = words
            self._words = torch.frombuffer(array("q", words), dtype=torch.int64)
        state: dict[str, Any] = {"python": (version, self._words, gauss), "torch": torch.get_rng_state()}
        if (numpy := sys.modules.get("numpy")) is not None:
            state["numpy"] = shared.numpy_to_save(numpy.random.get_state(legacy=False))
        if accelerator := accelerators.state_to_save():
            state["accelerator"] = accelerator
        if own := self.own.state():
            state["own"] = own
        return state

    def mark(self) -> tuple[object, ...]:
        """Return a value that changes once a number is drawn from Python's, NumPy's or torch's generators."""
        numpy = sys.modules.get("numpy")
        words: tuple[object, ...] = ()
        if numpy is not None:
            # The state includes the second of two normal numbers that were drawn at once.
            words = shared.frozen_numpy(numpy.random.get_state(legacy=False))
        words += tuple(state.numpy().tobytes() for state in accelerators.state_to_save().get("states", ()))
        return random.getstate(), torch.get_rng_state().numpy().tobytes(), *words

    def check(self, state: dict[str, Any]) -> None:
        """Raise StateError if an attached generator was not saved."""
        self.own.check(state.get("own", {}))

    def prepare(self, state: dict[str, Any]) -> None:
        """Make ready for the states of another process, which `put_back` is given next. Draws no numbers that count."""
        accelerators.prepare_dtensor(_of_accelerator(state))

    def put_back(self, state: dict[str, Any]) -> None:
        """Put the generators back where `state` found them, bit for bit."""
        random.setstate(shared.python_from(state["python"]))
        torch.set_rng_state(state["torch"])
        if "numpy" in state:
            shared.put_back_numpy(state["numpy"])
        accelerators.put_back(_of_accelerator(state))
        self.own.put_back(state.get("own", {}))


def _of_accelerator(state: dict[str, Any]) -> dict[str, Any]:
    """Return what was saved of an accelerator, in today's form; empty if there is nothing."""
    if "cuda" in state:  # earlier versions wrote the state of the current GPU alone
        return {"type": "cuda", "current": 0, "states": [state["cuda"]]}
    if "gpus" in state:
        return {"type": "cuda", **state["gpus"]}
    accelerator: dict[str, Any] = state.get("accelerator", {})
    return {"current": 0, **accelerator} if accelerator else {}


class Buffers:
    """Copies tensors into the same memory every time, so that a snapshot sees only their values change."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def keep(self, key: str, tensor: Tensor) -> Tensor:
        """Copy `tensor` into the memory kept for `key`, and return the kept tensor."""
        kept = self._kept.get(key)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            kept = self._kept[key] = torch.empty_like(tensor)
        return kept.copy_(tensor)

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

from ftlaunch_hooks.process.say import say
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

        NumPy's state is read only if NumPy has been imported, those of GPUs only if CUDA is initialised. Then the
        states of all GPUs that the process sees are read: a state is a seed and an offset on the host.
        """
        version, words, gauss = random.getstate()
        if words != self._python:
            self._python = words
            self._words = torch.frombuffer(array("q", words), dtype=torch.int64)
        state: dict[str, Any] = {"python": (version, self._words, gauss), "torch": torch.get_rng_state()}
        if (numpy := sys.modules.get("numpy")) is not None:
            state["numpy"] = shared.numpy_to_save(numpy.random.get_state(legacy=False))
        if torch.cuda.is_initialized() and torch.cuda.is_available():  # type: ignore[no-untyped-call]
            states = [generator.get_state() for generator in torch.cuda.default_generators]
            state["gpus"] = {"current": torch.cuda.current_device(), "states": states}
        if accelerator := accelerators.random_state():
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
        if torch.cuda.is_initialized() and torch.cuda.is_available():  # type: ignore[no-untyped-call]
            words += tuple(generator.get_state().numpy().tobytes() for generator in torch.cuda.default_generators)
        words += tuple(state.numpy().tobytes() for state in accelerators.random_state().get("states", ()))
        return random.getstate(), torch.get_rng_state().numpy().tobytes(), *words

    def check(self, state: dict[str, Any]) -> None:
        """Warn of parts of a saved state that cannot be put back.

        Raises:
            StateError: an attached generator was not saved.
        """
        self.own.check(state.get("own", {}))
        gpus = _gpus(state)
        now = torch.cuda.device_count()
        if gpus is not None and "gpus" in state and len(gpus["states"]) != now:
            say(
                f"this process sees {now} GPUs, {len(gpus['states'])} when the state was saved: the random numbers of "
                "the current one go on, those of others begin anew"
            )

    def put_back(self, state: dict[str, Any]) -> None:
        """Put the generators back where `state` found them, bit for bit."""
        random.setstate(shared.python_from(state["python"]))
        torch.set_rng_state(state["torch"])
        if "numpy" in state:
            shared.put_back_numpy(state["numpy"])
        if (gpus := _gpus(state)) is not None:
            _put_back_gpus(**gpus)
        accelerators.put_back_random_state(state.get("accelerator", {}))
        self.own.put_back(state.get("own", {}))


def _gpus(state: dict[str, Any]) -> dict[str, Any] | None:
    """Return what was saved of GPUs; None where there are none now."""
    if not torch.cuda.is_available():
        return None
    if "cuda" in state:  # earlier versions wrote the state of the current GPU alone
        return {"current": 0, "states": [state["cuda"]]}
    return state.get("gpus")


def _put_back_gpus(current: int, states: list[Tensor]) -> None:
    """Put the generators of GPUs back.

    Where this process sees another number of GPUs, only its current one gets a state, that of the current one then.
    """
    torch.cuda.init()  # type: ignore[no-untyped-call]
    generators = torch.cuda.default_generators
    if len(generators) != len(states):
        generators = (generators[torch.cuda.current_device()],)
        states = [states[current]]
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)


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

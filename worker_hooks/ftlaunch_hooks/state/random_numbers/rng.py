"""The random number generators of a rank: Python's, NumPy's, torch's on CPU and GPUs, and those a script has made."""

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
    """All generators in use; the state of Python's is converted again only after numbers were drawn."""

    def __init__(self, own: OwnGenerators) -> None:
        """own: those that the script has made itself."""
        self.own = own
        self._python: tuple[int, ...] = ()
        self._words = torch.empty(0, device="cpu")

    def state(self) -> dict[str, Any]:
        """The state of the generators: tensors, tuples and numbers that `encode` takes.

        NumPy's is taken only when NumPy has been imported, those of GPUs only when CUDA is initialised. Then the
        states of all GPUs that the process sees are taken: a state is a seed and an offset on the host.
        """
        version, words, gauss = random.getstate()
        if words != self._python:
            self._python, self._words = words, torch.frombuffer(array("q", words), dtype=torch.int64)
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
        """What is another one once a number was drawn from Python's, NumPy's or torch's generators."""
        numpy = sys.modules.get("numpy")
        words: tuple[object, ...] = ()
        if numpy is not None:
            words = shared.frozen_numpy(
                numpy.random.get_state(legacy=False)
            )  # with the second of two that were drawn at once
        if torch.cuda.is_initialized() and torch.cuda.is_available():  # type: ignore[no-untyped-call]
            words += tuple(generator.get_state().numpy().tobytes() for generator in torch.cuda.default_generators)
        words += tuple(state.numpy().tobytes() for state in accelerators.random_state().get("states", ()))
        return random.getstate(), torch.get_rng_state().numpy().tobytes(), *words

    def check(self, state: dict[str, Any]) -> None:
        """Say what of a saved state cannot be put back. Raises StateError where an attached generator was not saved."""
        self.own.check(state.get("own", {}))
        gpus, now = _gpus(state), torch.cuda.device_count()
        if gpus is not None and "gpus" in state and len(gpus["states"]) != now:
            say(
                f"this process sees {now} GPUs, {len(gpus['states'])} when the state was saved: the random numbers of "
                "the current one go on, those of others begin anew"
            )

    def put_back(self, state: dict[str, Any]) -> None:
        """Put the generators back where `state` found them; bit for bit."""
        random.setstate(shared.python_from(state["python"]))
        torch.set_rng_state(state["torch"])
        if "numpy" in state:
            shared.put_back_numpy(state["numpy"])
        if (gpus := _gpus(state)) is not None:
            _put_back_gpus(**gpus)
        accelerators.put_back_random_state(state.get("accelerator", {}))
        self.own.put_back(state.get("own", {}))


def _gpus(state: dict[str, Any]) -> dict[str, Any] | None:
    """What was saved of GPUs, where there are any now."""
    if not torch.cuda.is_available():
        return None
    if "cuda" in state:  # as earlier versions wrote it: of one GPU, the current one
        return {"current": 0, "states": [state["cuda"]]}
    return state.get("gpus")


def _put_back_gpus(current: int, states: list[Tensor]) -> None:
    """GPU by GPU; where this process sees another number of GPUs, its current one takes the state of the one then."""
    torch.cuda.init()  # type: ignore[no-untyped-call]
    generators = torch.cuda.default_generators
    if len(generators) != len(states):
        generators, states = (generators[torch.cuda.current_device()],), [states[current]]
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)


class Buffers:
    """Copies tensors into the same memory every time, so that only values change."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def keep(self, key: str, tensor: Tensor) -> Tensor:
        """The kept tensor, now with the values of `tensor`."""
        kept = self._kept.get(key)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            kept = self._kept[key] = torch.empty_like(tensor)
        return kept.copy_(tensor)

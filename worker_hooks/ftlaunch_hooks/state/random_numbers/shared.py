"""The process's own generators: reads, compares and puts back their states.

They are Python's, NumPy's, torch's on the CPU, and that of the current device of an accelerator that is in use: with
torch.set_default_device() samplers and data sets draw from it.
"""

from __future__ import annotations

import random
import sys
from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.process.say import say

State = dict[str, Any]


class Raw(NamedTuple):
    """States as the libraries return them: quick to read and to put back, but not in a form that can be saved."""

    python: Any
    torch: Tensor
    numpy: dict[str, Any] | None  # None where NumPy is not imported
    accelerator: Tensor | None = None  # None where none is in use


def read_raw() -> Raw:
    """Read the states of all four generators, in about 70 us."""
    numpy = sys.modules.get("numpy")
    return Raw(
        python=random.getstate(),
        torch=torch.get_rng_state(),
        numpy=None if numpy is None else numpy.random.get_state(legacy=False),
        accelerator=device_port.current_random_state(),
    )


def put_back_raw(raw: Raw) -> None:
    """Put all four generators where `read_raw` has found them."""
    random.setstate(raw.python)
    torch.set_rng_state(raw.torch)
    if raw.numpy is not None:
        sys.modules["numpy"].random.set_state(raw.numpy)
    if raw.accelerator is not None:
        device_port.put_back_current_random_state(raw.accelerator)


def are_alike(one: Raw, other: Raw) -> bool:
    """Whether nothing was drawn between two readings."""
    if one.python != other.python or not torch.equal(one.torch, other.torch):
        return False
    # NumPy may have been imported in between, and an accelerator may have come into use.
    if (
        one.accelerator is not None
        and other.accelerator is not None
        and not torch.equal(one.accelerator, other.accelerator)
    ):
        return False
    if one.numpy is None or other.numpy is None:
        return True
    return bool(frozen_numpy(one.numpy) == frozen_numpy(other.numpy))


def to_save(raw: Raw) -> State:
    """Return the states in a form that an attached object may save."""
    state: State = {"python": python_to_save(raw.python), "torch": raw.torch}
    if raw.numpy is not None:
        state["numpy"] = numpy_to_save(raw.numpy)
    if raw.accelerator is not None:
        state["accelerator"] = raw.accelerator
    return state


def read(own: Iterable[torch.Generator] = ()) -> State:
    """Read the states of the global generators, and of the generators `own` in order, in a form that can be saved."""
    return {**to_save(read_raw()), "own": [generator.get_state() for generator in own]}


def put_back(state: State, own: Iterable[torch.Generator] = ()) -> None:
    """Put the generators where `read` found them. own: the same generators, in the same order."""
    random.setstate(python_from(state["python"]))
    torch.set_rng_state(state["torch"])
    for generator, saved in zip(own, state.get("own", ()), strict=False):
        generator.set_state(saved)
    if "numpy" in state and "numpy" in sys.modules:
        put_back_numpy(state["numpy"])
    if "accelerator" in state:
        device_port.put_back_current_random_state(state["accelerator"])


def seed_all(seed: int) -> None:
    """Give all four generators a seed of 64 bits. Those of devices that are not the current one are left alone."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed GPUs that are not in use
    device_port.seed_current(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed >> 32)


# --- one generator's state as it is saved --------------------------------------------------------------------


def python_to_save(state: Any) -> tuple[Any, ...]:
    """Return the result of random.Random.getstate() with its 625 words as one tensor."""
    version, words, gauss = state
    return version, torch.frombuffer(array("q", words), dtype=torch.int64), gauss


def python_from(saved: Any) -> tuple[Any, ...]:
    """Return what random.Random.setstate() takes, from the result of `python_to_save`."""
    version, words, gauss = saved
    return version, tuple(words.tolist()), gauss


def numpy_to_save(state: dict[str, Any]) -> Any:
    """Convert the result of numpy.random.get_state(legacy=False): to a tuple for an MT19937, else unchanged."""
    if state["bit_generator"] != "MT19937":
        return state
    inner = state["state"]
    return "MT19937", torch.from_numpy(inner["key"].astype("int64")), inner["pos"], state["has_gauss"], state["gauss"]


def put_back_numpy(saved: Any) -> None:
    """Give NumPy's global generator the state in `saved`; warn where the generator is of another kind now."""
    import numpy  # noqa: PLC0415 - only jobs that have used it need it

    kind = saved["bit_generator"] if isinstance(saved, dict) else saved[0]
    now = numpy.random.get_state(legacy=False)["bit_generator"]
    if now != kind:
        say(
            f"NumPy's global generator is a {now}, and was a {kind} when the state was saved: its numbers begin anew,"
            " and this run is not exact; call numpy.random.set_bit_generator() before attach()"
        )
    elif isinstance(saved, dict):
        numpy.random.set_state(saved)
    else:
        name, keys, *rest = saved
        numpy.random.set_state((name, keys.numpy().astype("uint32"), *rest))


def frozen_numpy(state: Any) -> Any:
    """Return a state of NumPy's as numbers and bytes, which can be compared."""
    if isinstance(state, dict):
        return tuple(frozen_numpy(value) for value in state.values())
    return state.tobytes() if hasattr(state, "tobytes") else state

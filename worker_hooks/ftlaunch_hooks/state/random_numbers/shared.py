"""The process's own generators (Python's, NumPy's, torch's on the CPU): their states read, kept, compared, put back."""

from __future__ import annotations

import random
import sys
from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ftlaunch_hooks.process.say import say

State = dict[str, Any]


class Raw(NamedTuple):
    """States as the libraries give them: quick to read and to put back, and not to be saved."""

    python: Any
    torch: Tensor
    numpy: dict[str, Any] | None  # None where NumPy is not imported


def read_raw() -> Raw:
    """Read the states of all three generators, in about 70 us."""
    numpy = sys.modules.get("numpy")
    return Raw(
        python=random.getstate(),
        torch=torch.get_rng_state(),
        numpy=None if numpy is None else numpy.random.get_state(legacy=False),
    )


def put_back_raw(raw: Raw) -> None:
    """Put all three generators where `read_raw` has found them."""
    random.setstate(raw.python)
    torch.set_rng_state(raw.torch)
    if raw.numpy is not None:
        sys.modules["numpy"].random.set_state(raw.numpy)


def are_alike(one: Raw, other: Raw) -> bool:
    """Whether nothing was drawn between two readings."""
    if one.python != other.python or not torch.equal(one.torch, other.torch):
        return False
    if one.numpy is None or other.numpy is None:  # NumPy was imported in between
        return True
    return bool(frozen_numpy(one.numpy) == frozen_numpy(other.numpy))


def to_save(raw: Raw) -> State:
    """Return the states as an attached object may save them."""
    state: State = {"python": python_to_save(raw.python), "torch": raw.torch}
    if raw.numpy is not None:
        state["numpy"] = numpy_to_save(raw.numpy)
    return state


def read(own: Iterable[torch.Generator] = ()) -> State:
    """Read the states of the global generators, and those of `own`, in order, as they may be saved."""
    return {**to_save(read_raw()), "own": [generator.get_state() for generator in own]}


def put_back(state: State, own: Iterable[torch.Generator] = ()) -> None:
    """Put the generators where `read` has found them."""
    random.setstate(python_from(state["python"]))
    torch.set_rng_state(state["torch"])
    for generator, saved in zip(own, state.get("own", ()), strict=False):
        generator.set_state(saved)
    if "numpy" in state and "numpy" in sys.modules:
        put_back_numpy(state["numpy"])


def seed_all(seed: int) -> None:
    """Seed all three generators with 64 bits; torch's on the CPU alone."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed also asks for a GPU
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed >> 32)


# --- one generator's state as it is saved --------------------------------------------------------------------


def python_to_save(state: Any) -> tuple[Any, ...]:
    """Of random.Random.getstate(): its 625 words as one tensor."""
    version, words, gauss = state
    return version, torch.frombuffer(array("q", words), dtype=torch.int64), gauss


def python_from(saved: Any) -> tuple[Any, ...]:
    """What random.Random.setstate() takes, of what `python_to_save` has made."""
    version, words, gauss = saved
    return version, tuple(words.tolist()), gauss


def numpy_to_save(state: dict[str, Any]) -> Any:
    """Of numpy.random.get_state(legacy=False): a tuple of a MT19937, of any other kind the state as it is."""
    if state["bit_generator"] != "MT19937":
        return state
    inner = state["state"]
    return "MT19937", torch.from_numpy(inner["key"].astype("int64")), inner["pos"], state["has_gauss"], state["gauss"]


def put_back_numpy(saved: Any) -> None:
    """Give NumPy's global generator what `numpy_to_save` has made; say so where it is of another kind now."""
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
    """Numbers and bytes of a state of NumPy's, to be compared."""
    if isinstance(state, dict):
        return tuple(frozen_numpy(value) for value in state.values())
    return state.tobytes() if hasattr(state, "tobytes") else state

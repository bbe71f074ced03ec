"""A look at a value of the script's: what is another one once the value has changed. Nothing is kept alive by it."""

from __future__ import annotations

import sys
import sysconfig
import time
import zlib
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CellType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SERIES = (list, tuple, deque, set, frozenset)
_ITEMS = 32  # of a container, and of what an object or a module holds
_SAMPLE = 64  # numbers of a tensor: writes through `.data` change no version
_NEAR = 600.0  # seconds
_NEAR_PART = 0.05  # of what a clock shows: every small number is near to a clock that has begun lately
_SMALL = 1 << 20  # bytes of an array that is read whole
_STDLIB = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
_INSTALLED = {"site-packages", "dist-packages"}
_OURS = str(Path(__file__).parents[2])

Look = object
IsSaved = Callable[[Any], bool]


def look(value: Any, is_saved: IsSaved, depth: int = 3) -> Look:
    """Of a number, a tensor, an array, a container, a module, or an object of the script's or of torch's.

    None for anything else, and for what `is_saved` says of: saved elsewhere. depth: containers and objects in each
    other. Reads a few numbers of a tensor: on a GPU that waits for it.
    """
    if isinstance(value, PLAIN):
        return None if is_time(value) else repr(value)
    if depth == 0 or is_saved(value):
        return None
    if isinstance(value, Tensor):
        return _tensor(value)
    if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        return _array(value)
    size, held = _held(value)
    if size is None:
        parts = _parts(value)
        return {name: look(one, is_saved, depth - 1) for name, one in parts.items()} if parts else None
    return size, [look(one, is_saved, depth - 1) for one in held]


def _held(value: Any) -> tuple[int | None, Sequence[Any]]:
    """How many values an object holds, and some of them; None for what is not looked into."""
    if isinstance(value, nn.Module):
        tensors = [*value.parameters(), *nn.Module.buffers(value)]  # Megatron has a list of that name
        return len(tensors), tensors[:: max(1, len(tensors) // _ITEMS)]
    if isinstance(value, dict):
        return len(value), list(value.values())[-_ITEMS:]
    if isinstance(value, _SERIES):
        return len(value), (value if isinstance(value, (list, tuple)) else list(value.copy()))[-_ITEMS:]
    if type(value).__module__.startswith("torch.") and hasattr(type(value), "load_state_dict"):  # a scheduler, a scaler
        return len(vars(value)), list(vars(value).values())
    return None, ()


def _parts(value: Any) -> dict[str, Any]:
    """What an object, a class or a function of the script's holds, by name; a function: in its closure and defaults."""
    if isinstance(value, MethodType):
        return _parts(value.__self__)
    if isinstance(value, FunctionType):
        if is_library(value.__code__.co_filename):
            return {}
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        filled = {name: cell.cell_contents for name, cell in cells if cell != CellType()}
        enclosed = {name: held for name, held in filled.items() if held is not value}  # a function may call itself
        return {**enclosed, **vars(value), **{"defaults": value.__defaults__ or ()}}
    if isinstance(value, type):
        own = vars(value) if _is_of_script(value) else {}
        return {name: held for name, held in list(own.items()) if not name.startswith("__") and not callable(held)}
    return dict(vars(value)) if is_script_object(value) else {}


def is_time(value: object) -> bool:
    """Whether a number is what a clock shows: scripts keep times for their logs."""
    if not isinstance(value, float):
        return False
    shown = (clock() for clock in (time.time, time.monotonic, time.perf_counter))
    return any(abs(value - now) < min(_NEAR, now * _NEAR_PART) for now in shown)


def is_script_object(value: object) -> bool:
    """Whether an object is of a class of the script's, and has attributes."""
    plain = isinstance(value, (type, FunctionType, MethodType, Tensor, nn.Module))
    return not plain and hasattr(value, "__dict__") and _is_of_script(type(value))


def _is_of_script(kind: type) -> bool:
    """Whether a class is the script's own, or one for whatever it likes."""
    if kind in (SimpleNamespace, Namespace) or kind.__module__ == "__main__":
        return True
    return not is_library(getattr(sys.modules.get(kind.__module__), "__file__", None))


def is_ours(file: str) -> bool:
    """Whether a file is one of the hooks'."""
    return file.startswith(_OURS)


def is_library(file: str | None) -> bool:
    """Whether a file is Python's, an installed package's or ours; what has no file is none of the script's."""
    if file is None or file.startswith("<frozen") or is_ours(file):
        return True
    return file.startswith(_STDLIB) or bool(_INSTALLED.intersection(Path(file).parts))


def _tensor(tensor: Tensor) -> Look:
    version = 0 if tensor.is_inference() else tensor._version
    return id(tensor), version, tuple(tensor.shape), _sample(tensor.detach())


def _sample(tensor: Tensor) -> bytes:
    local: Any = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if type(local) is not Tensor or local.layout is not torch.strided or local.is_meta or local.is_quantized:
        return b""
    if not local.untyped_storage().nbytes():
        return b""  # FSDP frees the memory of parameters that it has not gathered
    flat = local.reshape(-1) if local.is_contiguous() else local.as_strided((local.numel() and 1,), (1,))
    few = flat[:: max(1, flat.numel() // _SAMPLE)]
    return few.cpu().resolve_conj().resolve_neg().contiguous().view(torch.uint8).numpy().tobytes()


def _array(array: Any) -> Look:
    if array.dtype.hasobject:
        return array.shape
    whole = array if array.nbytes <= _SMALL else array.flat[:: max(1, array.size // _SAMPLE)]
    return array.shape, zlib.crc32(whole.tobytes())


def changed_parts(name: str, now: Look, before: Look) -> Iterator[str]:
    """`name`, or of an object the names of what has changed in it: `name.part`."""
    if isinstance(now, Mapping) and isinstance(before, Mapping):
        for part in now:
            yield from changed_parts(f"{name}.{part}", now[part], before.get(part))
    elif now != before:
        yield name

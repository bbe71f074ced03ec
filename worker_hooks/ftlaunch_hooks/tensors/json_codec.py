"""State that is not a tensor as JSON: exact, readable by anyone, and without pickle.

What JSON has no word for is written as an object whose first key is a tag (`{"__tuple__": [1, 2]}`). Tensors stay
outside and are named: `{"__tensor__": "optimizer.state.model.weight.exp_avg"}`. A dictionary whose own keys could be
mistaken for a tag is written as a list of pairs. `encode` and `decode` are pure but for their callbacks.
"""

from __future__ import annotations

import collections
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ftlaunch_hooks.tensors.state_error import StateError

__all__ = [
    "ALLOWED", "Get", "Json", "JsonCache", "Path", "Put", "StateError", "decode", "encode", "join", "show",
    "tag_tensor",
]  # fmt: skip

Json = Any
"""None, bool, int, float, str, lists of these, dictionaries from str to these"""
Path = tuple[Any, ...]
"""the name of an attached object, then the keys and indices that lead to a value"""
Put = Callable[[Path, Tensor], str]
"""Stores a tensor; returns its key."""
Get = Callable[[str, str], Tensor]
"""Returns the tensor of a key on a device: `cpu`, `cuda` for the process's current one, `cuda:1` for another one."""

_TENSOR = "__tensor__"
_ARRAY = "__array__"
_SCALAR = "__numpy__"
_TUPLE = "__tuple__"
_SIZE = "__size__"
_PAIRS = "__pairs__"
_FLOAT = "__float__"
_DTYPE = "__dtype__"
_DEVICE = "__device__"
_TAGS = frozenset((_TENSOR, _ARRAY, _SCALAR, _TUPLE, _SIZE, _PAIRS, _FLOAT, _DTYPE, _DEVICE))

_MAPPINGS: dict[str, type[dict[Any, Any]]] = {
    "dict": dict,
    "OrderedDict": collections.OrderedDict,
    "Counter": collections.Counter,
}
# "numpy scalars" are bools, integers and floats of up to 8 bytes; the message for others is the same.
ALLOWED = (
    "None, bool, int, float, str, list, tuple, dict, OrderedDict and Counter with str or int keys, "
    "numpy scalars and arrays, torch tensors, dtypes, devices and sizes"
)


def show(path: Path) -> str:
    """Return a path as it is shown to people: identifiers, also dotted ones, after a dot, other keys in brackets.

    `("sampler", "cache", "x y", 3)` is `sampler.cache['x y'][3]`. An identifier follows a dot even where it is a key of
    a dictionary, because the path does not say what holds the value.
    """
    head, *rest = path
    return str(head) + "".join(f".{part}" if _is_name(part) else f"[{part!r}]" for part in rest)


def _is_name(part: object) -> bool:
    return isinstance(part, str) and all(piece.isidentifier() for piece in part.split("."))


def join(path: Path) -> str:
    """Return a path as a tensor's key: `sampler.cache.x`."""
    return ".".join(map(str, path))


# --- encoding ---------------------------------------------------------------------------------------------


def encode(value: object, path: Path, put: Put) -> Json:
    """Return `value` as JSON.

    Args:
        value: what to encode.
        path: the path of the value, for keys and messages.
        put: stores each tensor in it, and each array as a tensor that shares the array's memory where possible.

    Raises:
        StateError: the value, or something in it, is of a type that is not in `ALLOWED`; a dictionary has a key that is
            no str or int; a numpy scalar takes more than 8 bytes; or torch has no dtype for an array.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if isinstance(value, Tensor):
        return tag_tensor(put(path, value), value.device)
    for kinds, encoder in _ENCODERS:
        if kind in kinds:
            return encoder(value, path, put)
    if (numpy := sys.modules.get("numpy")) is not None:
        if kind is numpy.ndarray:
            return _encode_array(value, path, put)
        if isinstance(value, (numpy.bool_, numpy.integer, numpy.floating)):
            return _encode_scalar(value, path, put)
    raise _refusal(value, path)


def tag_tensor(key: str, device: torch.device) -> dict[str, Json]:
    """Return what stands for a tensor in an encoded value.

    Args:
        key: the tensor's key.
        device: where the tensor lies; not written for the CPU.
    """
    tag: dict[str, Json] = {_TENSOR: key}
    return tag if device.type == "cpu" else {**tag, "device": _device_name(device)}


def _device_name(device: torch.device) -> str:
    """Return `cuda` for the process's current device, since another process may have another one; else `cuda:1`."""
    accelerator = torch.accelerator.current_accelerator()
    if device.index is None or accelerator is None or accelerator.type != device.type:
        return device.type
    return device.type if torch.accelerator.current_device_index() == device.index else str(device)


def _refusal(value: object, path: Path) -> StateError:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return StateError(f"cannot save `{show(path)}`: it is of type {name}; allowed are {ALLOWED}")


def _encode_float(value: Any, path: Path, put: Put) -> Json:
    return value if math.isfinite(value) else {_FLOAT: repr(value)}


def _encode_list(value: Any, path: Path, put: Put) -> Json:
    return [encode(element, (*path, index), put) for index, element in enumerate(value)]


def _encode_tuple(value: Any, path: Path, put: Put) -> Json:
    return {_TUPLE: _encode_list(value, path, put)}


def _encode_mapping(value: Any, path: Path, put: Put) -> Json:
    kind = type(value).__name__
    for key in value:
        if type(key) not in (str, int):
            raise StateError(
                f"cannot save `{show(path)}`: it has the key {key!r} of type {type(key).__name__}; "
                "allowed are str and int"
            )
    pairs = [(key, encode(element, (*path, key), put)) for key, element in value.items()]
    if kind == "dict" and all(type(key) is str and key not in _TAGS for key, _ in pairs):
        return dict(pairs)
    return {_PAIRS: [[key, element] for key, element in pairs], "type": kind}


def _encode_array(value: Any, path: Path, put: Put) -> Json:
    size = max(value.dtype.itemsize, 1)
    can_share_memory = value.flags.writeable and all(stride >= 0 and not stride % size for stride in value.strides)
    try:
        tensor = torch.from_numpy(value if can_share_memory else value.copy())
    except (TypeError, ValueError):
        raise StateError(f"cannot save `{show(path)}`: an array of dtype {value.dtype}") from None
    return {_ARRAY: put(path, tensor)}


def _encode_scalar(value: Any, path: Path, put: Put) -> Json:
    if value.dtype.itemsize > 8:  # a longdouble has more digits than a Python float
        raise _refusal(value, path)
    return {_SCALAR: value.dtype.str, "value": encode(value.item(), path, put)}


_ENCODERS: Sequence[tuple[tuple[type, ...], Callable[[Any, Path, Put], Json]]] = (
    ((float,), _encode_float),
    ((list,), _encode_list),
    ((tuple,), _encode_tuple),
    (tuple(_MAPPINGS.values()), _encode_mapping),
    ((torch.dtype,), lambda value, path, put: {_DTYPE: str(value).removeprefix("torch.")}),
    ((torch.device,), lambda value, path, put: {_DEVICE: str(value)}),
    ((torch.Size,), lambda value, path, put: {_SIZE: list(value)}),
)


# --- decoding ---------------------------------------------------------------------------------------------


def decode(tree: Json, get: Get) -> Any:
    """Return the value that `encode` was given.

    Args:
        tree: the result of `encode`, which has come through JSON. Nothing checks its form: a tree that `encode` has not
            made raises KeyError, TypeError, ValueError or AttributeError.
        get: returns each tensor by its key and device. What it raises is passed on.

    Raises:
        StateError: this torch does not know a dtype.
    """
    if isinstance(tree, list):
        return [decode(element, get) for element in tree]
    if not isinstance(tree, dict):
        return tree
    tag = next(iter(tree), "")
    if tag in _DECODERS:
        return _DECODERS[tag](tree[tag], tree, get)
    return {key: decode(element, get) for key, element in tree.items()}


def _decode_array(content: Json, tree: Json, get: Get) -> Any:
    import numpy  # noqa: PLC0415 - only jobs that have saved an array need it  # isort: skip

    tensor = get(content, "cpu")
    # A view shares the memory of another restored tensor, as its array did when it was saved, and a copy would not. All
    # other arrays are copied: an array that borrows a tensor's memory cannot be resized.
    return tensor.numpy() if tensor._is_view() else numpy.array(tensor.numpy())


def _decode_scalar(content: Json, tree: Json, get: Get) -> Any:
    import numpy  # noqa: PLC0415 - as above  # isort: skip

    return numpy.dtype(content).type(decode(tree["value"], get))


def _decode_pairs(content: Json, tree: Json, get: Get) -> Any:
    mapping = _MAPPINGS[tree["type"]]()
    for key, element in content:
        mapping[key] = decode(element, get)
    return mapping


def _decode_dtype(content: Json, tree: Json, get: Get) -> torch.dtype:
    dtype = getattr(torch, content, None)
    if not isinstance(dtype, torch.dtype):
        raise StateError(f"cannot restore a dtype named {content!r}: this torch does not know it")
    return dtype


_DECODERS: Mapping[str, Callable[[Json, Json, Get], Any]] = {
    _TENSOR: lambda content, tree, get: get(content, tree.get("device", "cpu")),
    _ARRAY: _decode_array,
    _SCALAR: _decode_scalar,
    _TUPLE: lambda content, tree, get: tuple(decode(element, get) for element in content),
    _SIZE: lambda content, tree, get: torch.Size(content),
    _PAIRS: _decode_pairs,
    _FLOAT: lambda content, tree, get: float(content),
    _DTYPE: _decode_dtype,
    _DEVICE: lambda content, tree, get: torch.device(content),
}


class JsonCache:
    """Writes trees as JSON text, and reuses the text of each list or dict that is the identical object as last time.

    Identical means `is`, not `==`. A list or dict that was changed in place is therefore written as it was:
    give a new object for a new content.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Json, str]] = {}

    def dumps(self, trees: Mapping[str, Mapping[str, Json]]) -> str:
        """Return a two-level dictionary as JSON; texts are reused for the values on its second level."""
        return self._object((name, self._object(self._texts(name, tree))) for name, tree in trees.items())

    def _texts(self, name: str, tree: Mapping[str, Json]) -> Any:
        for key, element in tree.items():
            place = f"{name}\0{key}"
            known = self._known.get(place)
            if known is None or known[0] is not element or not isinstance(element, (dict, list)):
                known = self._known[place] = (element, json.dumps(element, allow_nan=False))
            yield key, known[1]

    @staticmethod
    def _object(texts: Any) -> str:
        return "{" + ",".join(f"{json.dumps(key)}:{text}" for key, text in texts) + "}"

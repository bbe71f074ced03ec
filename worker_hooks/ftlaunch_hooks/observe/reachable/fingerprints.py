"""Fingerprints of values that are the same in another process: no addresses, no hashes that Python seeds.

A fingerprint of a large value looks at a part of it. What one process can tell better is in the *marks*: which object a
tensor is, and how often it was written to. Marks mean nothing to another process.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from ftlaunch_hooks.observe.reachable.kinds import Category, instance_dict, kind_of_type
from ftlaunch_hooks.state.random_numbers.generators import state_of
from ftlaunch_hooks.tensors.dtypes import is_sharded, local_of

ELEMENTS = 512
"""of a container: one that has more is sampled"""
_NESTED = 6
_SHORT = 64  # characters of a text that is its own fingerprint
_SAMPLE = 64  # numbers of a tensor
_TENSORS = 32  # of a module that is attached nowhere
_SMALL = 1 << 20  # bytes of an array that is read whole
_NEAR = 600.0  # seconds
_NEAR_PART = 0.05  # of what a clock shows: every small number is near to a clock that has begun lately

_PROCESS = os.getpid()
_OF_PROCESS = frozenset(("pid", "fd", "fileno", "port"))  # names of numbers
_ENDS_OF_PROCESS = ("_pid", "_fd", "_fileno", "_port")
_ADDRESSES = range(1 << 45, 1 << 47, 8)
"""where 64-bit Linux has a process's objects: a dict whose keys are id()s has others in each process"""
_SINCE = 1e9  # seconds since 1970: no wall clock shows less

Marks = list[tuple[int, int]]
IsSaved = Callable[[Any], bool]


def digest(content: bytes | str) -> str:
    """Sixteen hexadecimal digits of some bytes."""
    as_bytes = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return xxhash.xxh3_64_hexdigest(as_bytes)


def is_time(value: object) -> bool:
    """Whether a number is what a clock shows, or may be: scripts keep times for their logs."""
    if type(value) is not float:
        return False
    shown = (clock() for clock in (time.time, time.monotonic, time.perf_counter))
    return any(abs(value - now) < min(_NEAR, now * _NEAR_PART) for now in shown)


def is_of_this_process(name: str, value: object) -> bool:
    """Whether a variable tells of the process or the moment, and not of the training.

    What a monotonic clock shows may as well be a measured number: that is none.
    """
    if type(value) is float:
        return value > _SINCE and abs(value - time.time()) < _NEAR
    if type(value) is not int:
        return False
    return value == _PROCESS or name.lower() in _OF_PROCESS or name.lower().endswith(_ENDS_OF_PROCESS)


def fingerprint(value: Any, marks: Marks, is_saved: IsSaved) -> str:
    """Of a number, a text, a tensor, an array, a generator of random numbers, or a container of these.

    Anything else inside a container counts by the name of its type. marks: gets those of the value's tensors.
    is_saved: whether an attached object holds a value; training may change that as it likes.
    """
    category = kind_of_type(type(value)).category
    if category is Category.SCALAR:
        return scalar_text(value)
    if category is Category.CONTAINER:
        kind = kind_of_type(type(value))
        return f"{kind.name} {container_length(value)} {digest(chr(0).join(_texts(value, marks, is_saved, _NESTED)))}"
    return _text(value, marks, is_saved, 0)


def scalar_text(value: Any) -> str:
    """The text of an immutable value, or a digest where the text is long."""
    kind = type(value)
    if kind is str:
        return repr(value) if len(value) <= _SHORT else f"str {len(value)} {digest(value)}"
    text = _base_text(value)
    return text if len(text) <= _SHORT else f"{kind.__name__} {digest(text)}"


def _base_text(value: Any) -> str:
    """The text by the method of the base class: that of a subclass may be foreign."""
    kind = type(value)
    for base in (bool, int, float, complex, str, bytes):
        if issubclass(kind, base):
            return str(base.__repr__(value))
    return repr(value)


def _text(value: Any, marks: Marks, is_saved: IsSaved, depth: int) -> str:
    kind = kind_of_type(type(value))
    if kind.category is Category.SCALAR:
        return "time" if is_of_this_process("", value) else scalar_text(value)
    if is_saved(value):
        return "attached"
    if kind.category is Category.TENSOR:
        return _text_of_tensor(value, marks)
    if kind.category is Category.ARRAY:
        return _text_of_array(value)
    if kind.category is Category.GENERATOR:
        return f"{kind.name} {digest(_text_of_state(state_of(value)))}"
    if kind.category is Category.ENUM:
        return f"{kind.name}.{instance_dict(value).get('_name_')}"
    if kind.category is Category.CONTAINER and depth:
        return f"{kind.name}[{','.join(_texts(value, marks, is_saved, depth - 1))}]"
    return kind.name


def _texts(value: Any, marks: Marks, is_saved: IsSaved, depth: int) -> Iterator[str]:
    """Of a container's elements; those of a set in an order that does not depend on the process."""
    base = base_of_container(value)
    few = container_sample(value)
    if base is dict:
        for key, element in few:
            yield "address" if _is_address(key) else _text(key, marks, is_saved, depth)
            yield _text(element, marks, is_saved, depth)
    elif base in (set, frozenset):
        yield from sorted(_text(element, marks, is_saved, depth) for element in few)
    else:
        for element in few:
            yield _text(element, marks, is_saved, depth)


def keys_text(value: Any) -> str:
    """The texts of a dict's keys that are numbers or words, one behind the other."""
    keys = [key for key in dict.keys(value) if kind_of_type(type(key)).category is Category.SCALAR]
    return "".join("address" if _is_address(key) else scalar_text(key) for key in keys)


def _is_address(key: object) -> bool:
    return type(key) is int and key in _ADDRESSES


def base_of_container(value: Any) -> Any:
    """The builtin class whose methods read a container, also one of a class that overrides them."""
    for base in (dict, list, tuple, deque, set):
        if issubclass(type(value), base):
            return base
    return frozenset


def container_length(value: Any) -> int:
    """The number of elements, by the builtin class."""
    return int(base_of_container(value).__len__(value))


def container_sample(value: Any) -> Sequence[Any]:
    """Elements of a container, pairs of a dict: all, or some from everywhere and the last ones."""
    base, length = base_of_container(value), container_length(value)
    elements: Iterable[Any] = dict.items(value) if base is dict else base.__iter__(value)
    if length <= ELEMENTS:
        return list(elements)
    if base in (set, frozenset):
        return []  # which ones come first depends on the process
    if base in (list, tuple):
        return [*value[:: length // (ELEMENTS // 2)], *value[-16:]]  # a slice copies by the builtin method
    last = reversed(dict.items(value)) if base is dict else deque.__reversed__(value)
    return [*itertools.islice(elements, ELEMENTS // 2), *itertools.islice(last, 16)]


def tensors_fingerprint(tensors: Sequence[Tensor], marks: Marks) -> str:
    """Of a module's tensors: versions of all, values of some."""
    marks.extend(map(_mark, tensors))
    few = tensors[:: max(1, -(-len(tensors) // _TENSORS))]
    return f"{len(tensors)} {digest(b''.join(map(sample, few)))}"


def _mark(tensor: Tensor) -> tuple[int, int]:
    return id(tensor), 0 if tensor.is_inference() else tensor._version


def _text_of_tensor(tensor: Tensor, marks: Marks) -> str:
    marks.append(_mark(tensor))
    return f"{tensor.dtype}{list(tensor.shape)} {digest(sample(tensor))}"


def sample(tensor: Tensor) -> bytes:
    """Bytes of a few numbers of a tensor, from everywhere in it; none where they cannot be read cheaply."""
    if not _is_plain(tensor):
        return b""  # methods of other classes of tensors are foreign code
    local = local_of(tensor.detach())
    if local.layout is not torch.strided or local.is_meta or local.is_quantized:
        return b""
    if not local.numel() or not local.untyped_storage().nbytes():
        return b""  # FSDP frees the memory of parameters that it has not gathered
    distance = max(1, local.numel() // _SAMPLE)
    if local.is_contiguous():
        few = local.reshape(-1)[::distance]
    else:
        few = local[torch.unravel_index(torch.arange(0, local.numel(), distance, device=local.device), local.shape)]
    return bytes(few.cpu().resolve_conj().resolve_neg().contiguous().view(torch.uint8).numpy().tobytes())


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, nn.Parameter) or is_sharded(tensor)


def _text_of_array(array: Any) -> str:
    numpy = sys.modules["numpy"]
    plain = array.view(numpy.ndarray) if type(array) is not numpy.ndarray else array
    about = f"{plain.dtype.str}{list(plain.shape)}"
    if plain.dtype.hasobject:
        return about
    whole = plain if plain.nbytes <= _SMALL else plain.flat[:: max(1, plain.size // _SAMPLE)]
    return f"{about} {digest(whole.tobytes())}"


def _text_of_state(state: Any) -> str:
    if isinstance(state, dict):
        return ",".join(f"{key}:{_text_of_state(value)}" for key, value in state.items())
    if isinstance(state, tuple):
        return ",".join(map(_text_of_state, state))
    if isinstance(state, Tensor):
        return digest(state.cpu().numpy().tobytes())
    return digest(state.tobytes()) if hasattr(state, "tobytes") else repr(state)

"""Fingerprints values so that two processes can compare them: without addresses, without hashes that Python seeds.

A fingerprint of a large value reads a part of the value. *Marks* tell more precisely whether a value has changed within
one process: a mark is the identity of a tensor and the number of writes to it. Marks mean nothing to another process.

The walk calls these functions in the thread that trains. They change no value, and run no foreign code.
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
"""largest number of elements of a container that are all read; a longer container is sampled"""
_MAX_DEPTH = 6
"""largest number of containers within each other"""
_MOST_CHARACTERS = 64
"""length of the longest text that is its own fingerprint"""
_SAMPLED_NUMBERS = 64
"""number of values that are read of a tensor, or of a large array"""
_SAMPLED_TENSORS = 32
"""number of tensors that are read of a module"""
_WHOLE_ARRAY_BYTES = 1 << 20
"""largest size of an array that is read whole"""
_NEAR_SECONDS = 600.0
"""largest distance of a number from a clock's time for the number to count as a time"""
_NEAR_SHARE = 0.05
"""the same limit as a share of the clock's time: every small number is near a clock that began lately"""

_PROCESS_ID = os.getpid()
_PROCESS_NAMES = frozenset(("pid", "fd", "fileno", "port"))
"""names of numbers that belong to a process"""
_PROCESS_SUFFIXES = ("_pid", "_fd", "_fileno", "_port")
_ADDRESSES = range(1 << 45, 1 << 47, 8)
"""addresses of objects on 64-bit Linux: a dict whose keys are id()s has other keys in each process"""
_LEAST_WALL_TIME = 1e9
"""seconds since 1970; no wall clock shows less"""

Marks = list[tuple[int, int]]
"""id and version of each tensor"""
IsSaved = Callable[[Any], bool]
"""returns whether an attached object holds a value"""


def digest(content: bytes | str) -> str:
    """Return a hash as sixteen hexadecimal digits."""
    as_bytes = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return xxhash.xxh3_64_hexdigest(as_bytes)


def is_time(value: object) -> bool:
    """Return whether a number may be the time of a clock. Scripts keep times for their logs."""
    if type(value) is not float:
        return False
    times = (clock() for clock in (time.time, time.monotonic, time.perf_counter))
    return any(abs(value - now) < min(_NEAR_SECONDS, now * _NEAR_SHARE) for now in times)


def is_of_this_process(name: str, value: object) -> bool:
    """Return whether a variable tells of the process or the moment, and not of the training.

    The time of a monotonic clock is not recognized, because a measured number may have the same value.
    """
    if type(value) is float:
        return value > _LEAST_WALL_TIME and abs(value - time.time()) < _NEAR_SECONDS
    if type(value) is not int:
        return False
    return value == _PROCESS_ID or name.lower() in _PROCESS_NAMES or name.lower().endswith(_PROCESS_SUFFIXES)


def fingerprint(value: Any, marks: Marks, is_saved: IsSaved) -> str:
    """Fingerprint a number, a text, a tensor, an array, a random number generator, or a container of these.

    Inside a container any other value counts by the name of its type, and a value that an attached object holds counts
    as "attached", because training may change it.

    Args:
        value: the value.
        marks: list to which the marks of the value's tensors are appended.
        is_saved: tells whether an attached object holds a value.
    """
    category = kind_of_type(type(value)).category
    if category is Category.SCALAR:
        return scalar_text(value)
    if category is Category.CONTAINER:
        kind = kind_of_type(type(value))
        texts = _texts(value, marks, is_saved, depth=_MAX_DEPTH)
        return f"{kind.name} {container_length(value)} {digest(chr(0).join(texts))}"
    return _text(value, marks, is_saved, depth=0)


def scalar_text(value: Any) -> str:
    """Return the text of an immutable value, or a digest of a long text."""
    kind = type(value)
    if kind is str:
        return repr(value) if len(value) <= _MOST_CHARACTERS else f"str {len(value)} {digest(value)}"
    text = _base_text(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{kind.__name__} {digest(text)}"


def _base_text(value: Any) -> str:
    """Return the text by the method of the base class, because the method of a subclass may be foreign."""
    kind = type(value)
    for base in (bool, int, float, complex, str, bytes):
        if issubclass(kind, base):
            return str(base.__repr__(value))
    return repr(value)


def _text(value: Any, marks: Marks, is_saved: IsSaved, depth: int) -> str:
    """Return the text of a value within a container. depth: number of containers that may be entered from here."""
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
        return f"{kind.name}[{','.join(_texts(value, marks, is_saved, depth=depth - 1))}]"
    return kind.name


def _texts(value: Any, marks: Marks, is_saved: IsSaved, depth: int) -> Iterator[str]:
    """Yield the texts of a container's elements. The order of a set's texts does not depend on the process."""
    base = base_of_container(value)
    elements = container_sample(value)
    if base is dict:
        for key, element in elements:
            yield "address" if _is_address(key) else _text(key, marks, is_saved, depth=depth)
            yield _text(element, marks, is_saved, depth=depth)
    elif base in (set, frozenset):
        yield from sorted(_text(element, marks, is_saved, depth=depth) for element in elements)
    else:
        for element in elements:
            yield _text(element, marks, is_saved, depth=depth)


def keys_text(value: Any) -> str:
    """Return the texts of a dict's keys that are numbers or words, joined without a separator."""
    keys = [key for key in dict.keys(value) if kind_of_type(type(key)).category is Category.SCALAR]
    return "".join("address" if _is_address(key) else scalar_text(key) for key in keys)


def _is_address(key: object) -> bool:
    return type(key) is int and key in _ADDRESSES


def base_of_container(value: Any) -> Any:
    """Return the builtin class whose methods read a container, even if the container's class overrides them."""
    for base in (dict, list, tuple, deque, set):
        if issubclass(type(value), base):
            return base
    return frozenset


def container_length(value: Any) -> int:
    """Return the number of elements, by the method of the builtin class."""
    return int(base_of_container(value).__len__(value))


def container_sample(value: Any) -> Sequence[Any]:
    """Return all elements of a container, or a sample of a long container. Elements of a dict are pairs.

    The sample of a list or tuple has elements from everywhere and the last 16. The sample of a dict or deque has the
    first elements and the last 16. A long set has no sample, because the order of its elements depends on the process.
    """
    base = base_of_container(value)
    length = container_length(value)
    elements: Iterable[Any] = dict.items(value) if base is dict else base.__iter__(value)
    if length <= ELEMENTS:
        return list(elements)
    if base in (set, frozenset):
        return []
    if base in (list, tuple):
        return [*value[:: length // (ELEMENTS // 2)], *value[-16:]]  # a slice copies by the builtin method
    last = reversed(dict.items(value)) if base is dict else deque.__reversed__(value)
    return [*itertools.islice(elements, ELEMENTS // 2), *itertools.islice(last, 16)]


def tensors_fingerprint(tensors: Sequence[Tensor], marks: Marks) -> str:
    """Fingerprint a module's tensors: read some of them, and append the marks of all to `marks`."""
    marks.extend(map(_mark, tensors))
    sampled = tensors[:: max(1, -(-len(tensors) // _SAMPLED_TENSORS))]
    return f"{len(tensors)} {digest(b''.join(map(sample, sampled)))}"


def _mark(tensor: Tensor) -> tuple[int, int]:
    return id(tensor), 0 if tensor.is_inference() else tensor._version


def _text_of_tensor(tensor: Tensor, marks: Marks) -> str:
    marks.append(_mark(tensor))
    return f"{tensor.dtype}{list(tensor.shape)} {digest(sample(tensor))}"


def sample(tensor: Tensor) -> bytes:
    """Return the bytes of a few numbers from everywhere in a tensor; b"" if they cannot be read cheaply."""
    if not _is_plain(tensor):
        return b""  # the methods of other classes of tensors are foreign code
    local = local_of(tensor.detach())
    if local.layout is not torch.strided or local.is_meta or local.is_quantized:
        return b""
    if not local.numel() or not local.untyped_storage().nbytes():
        return b""  # FSDP frees the memory of parameters that it has not gathered
    distance = max(1, local.numel() // _SAMPLED_NUMBERS)
    if local.is_contiguous():
        numbers = local.reshape(-1)[::distance]
    else:
        indices = torch.arange(0, local.numel(), distance, device=local.device)
        numbers = local[torch.unravel_index(indices, local.shape)]
    return bytes(numbers.cpu().resolve_conj().resolve_neg().contiguous().view(torch.uint8).numpy().tobytes())


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, nn.Parameter) or is_sharded(tensor)


def _text_of_array(array: Any) -> str:
    numpy = sys.modules["numpy"]
    plain = array.view(numpy.ndarray) if type(array) is not numpy.ndarray else array
    form = f"{plain.dtype.str}{list(plain.shape)}"
    if plain.dtype.hasobject:
        return form
    is_read_whole = plain.nbytes <= _WHOLE_ARRAY_BYTES
    numbers = plain if is_read_whole else plain.flat[:: max(1, plain.size // _SAMPLED_NUMBERS)]
    return f"{form} {digest(numbers.tobytes())}"


def _text_of_state(state: Any) -> str:
    if isinstance(state, dict):
        return ",".join(f"{key}:{_text_of_state(value)}" for key, value in state.items())
    if isinstance(state, tuple):
        return ",".join(map(_text_of_state, state))
    if isinstance(state, Tensor):
        return digest(state.cpu().numpy().tobytes())
    return digest(state.tobytes()) if hasattr(state, "tobytes") else repr(state)

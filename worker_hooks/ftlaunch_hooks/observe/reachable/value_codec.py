"""Encodes values of variables as JSON and tensors, and decodes them into the objects that exist: without pickle.

No class of the script's is called. Two names for one object stay two names for one object: an object that was encoded
before, or that the walk has reached at an earlier path, is written as that path.

The Survey encodes, `put_back` decodes, both in the thread that trains.
"""

from __future__ import annotations

import functools
import sys
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from pathlib import PosixPath
from typing import Any

import torch
from torch import Tensor

from ftlaunch_hooks.devices.device_port import nearest_device
from ftlaunch_hooks.observe.reachable.fingerprints import base_of_container
from ftlaunch_hooks.observe.reachable.kinds import (
    CONTAINERS,
    SCALARS,
    Category,
    instance_dict,
    is_script_module,
    kind_of_type,
)
from ftlaunch_hooks.observe.reachable.walk import ModuleTensors
from ftlaunch_hooks.state.collector import check_plain
from ftlaunch_hooks.state.random_numbers import generators
from ftlaunch_hooks.tensors import json_codec
from ftlaunch_hooks.tensors.dtypes import is_sharded
from ftlaunch_hooks.tensors.json_codec import Json, StateError

MOST_VALUES = 20_000
"""largest number of values of one variable that become JSON; a list of numbers becomes a tensor, whatever its length"""
_MOST_TENSORS = 2_000
"""largest number of tensors of one variable"""
_LEAST_PACKED = 64
"""length of the shortest list of numbers that becomes a tensor"""
_LEAST_ROOM = 64
"""smallest number of elements of that tensor: with room to grow, the files of a snapshot keep their layout"""
_MAX_DEPTH = 16
"""largest number of containers within each other"""

_TENSOR = "__tensor__"
_SAME = "__same__"
_PACKED = "__packed__"
_PACKED_DTYPES: Mapping[str, torch.dtype] = {"d": torch.float64, "q": torch.int64}
"""dtypes of packed lists, by the type codes of the module `array`"""
_DICTS = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter, "defaultdict": defaultdict}
_MISSING = object()

PutTensor = Callable[[str, Tensor], str]
"""takes a name within the variable, and a tensor; returns the tensor's key"""
GetTensor = Callable[[str], Tensor]
"""returns a saved tensor by its key"""
Find = Callable[[str], Any]
"""returns the object at a path; raises StateError where there is none"""


class Encoder:
    """Encodes the variables of one moment, one after the other."""

    def __init__(self, first_paths: Mapping[int, str], path_of_saved: Callable[[Any], str | None]) -> None:
        """Begin with nothing encoded.

        Args:
            first_paths: `LoopWalk.first_paths` of the walk that has reached the variables.
            path_of_saved: returns the name of a value that an attached object saves; None for other values.
        """
        self._first_paths = first_paths
        self._path_of_saved = path_of_saved
        self._inner: dict[int, tuple[Any, str]] = {}
        """objects in containers and their paths, by id; kept alive so that no id is used twice"""

    def encode(self, value: Any, path: str, put: PutTensor) -> Json:
        """Encode the value of a variable.

        Args:
            value: the value.
            path: path of the variable.
            put: called for each tensor of the value.

        Raises:
            StateError: the value cannot be saved.
        """
        return _Encoding(self, put).encode(value, path, "", is_top=True)

    def known_path(self, value: Any, path: str, *, is_top: bool) -> str | None:
        """Return the path under which an object was reached or encoded before; None for a new object.

        Args:
            value: the object.
            path: the path at which the object is reached now.
            is_top: whether the object is the value of a variable itself, and not an element of a container.
        """
        if (saved := self._path_of_saved(value)) is not None:
            return saved
        first = self._first_paths.get(id(value))
        if first is not None and not (is_top and first == path):
            return first
        inner = self._inner.get(id(value))
        return None if inner is None else inner[1]

    def note(self, value: Any, path: str) -> None:
        """Remember the path of an object in a container."""
        self._inner[id(value)] = value, path


class _Encoding:
    """Encodes the value of one variable."""

    def __init__(self, encoder: Encoder, put: PutTensor) -> None:
        self._encoder = encoder
        self._put = put
        self._values = 0
        """number of values encoded so far"""
        self._tensors = 0
        """number of tensors encoded so far"""

    def encode(self, value: Any, path: str, name: str, *, is_top: bool = False, depth: int = _MAX_DEPTH) -> Json:
        """Encode a value within the variable.

        Args:
            value: the value.
            path: path of the value.
            name: name of the value's place within the variable, for its tensors; "" for the variable itself.
            is_top: whether the value is the variable's own.
            depth: number of containers that may be entered from here.

        Raises:
            StateError: the value cannot be saved.
        """
        if isinstance(value, ModuleTensors):
            return self._encode_module(value, path)
        self._count(path)
        kind = kind_of_type(type(value))
        if kind.category is Category.SCALAR and not kind.is_subclass:
            return _encode_scalar(value, path)
        if (known := self._encoder.known_path(value, path, is_top=is_top)) is not None:
            return {_SAME: known}
        if not is_top:
            self._encoder.note(value, path)
        if kind.category is Category.TENSOR:
            return self._encode_tensor(value, path, name)
        if kind.category is Category.ARRAY and not kind.is_subclass:
            return self._encode_array(value, path, name)
        if kind.category is Category.GENERATOR:
            state = generators.state_of(value)
            tree = json_codec.encode(state, (path,), lambda place, tensor: self._put(f"{name}#", tensor))
            return {"__generator__": tree}
        if kind.category is Category.ENUM:
            return {"__enum__": kind.name, "name": instance_dict(value).get("_name_")}
        if kind.category is Category.CONTAINER and depth:
            return self._encode_container(value, path, name, depth=depth - 1)
        raise StateError(f"cannot save `{path}`: a value of type {kind.name}")

    def _count(self, path: str) -> None:
        self._values += 1
        if self._values > MOST_VALUES:
            raise StateError(f"cannot save `{path}`: more than {MOST_VALUES} values")

    def _encode_module(self, held: ModuleTensors, path: str) -> Json:
        tensors = {name: self._encode_tensor(tensor, path, f".{name}") for name, tensor in held.tensors.items()}
        return {"__module__": type(held.module).__qualname__, "tensors": tensors}

    def _encode_tensor(self, tensor: Tensor, path: str, name: str) -> Json:
        self._tensors += 1
        if self._tensors > _MOST_TENSORS:
            raise StateError(f"cannot save `{path}`: more than {_MOST_TENSORS} tensors")
        if is_sharded(tensor):
            raise StateError(f"cannot save `{path}`: a tensor that is sharded over the ranks")
        if tensor.grad_fn is not None and not is_used_up(tensor):
            raise StateError(f"cannot save `{path}`: a tensor that belongs to an autograd graph")
        check_plain((path,), tensor)
        tree = {_TENSOR: self._put(name, tensor.detach()), "device": str(tensor.device)}
        return {**tree, "requires_grad": True} if tensor.is_leaf and tensor.requires_grad else tree

    def _encode_array(self, value: Any, path: str, name: str) -> Json:
        return json_codec.encode(value, (path,), lambda place, tensor: self._put(name, tensor))

    def _encode_container(self, value: Any, path: str, name: str, *, depth: int) -> Json:
        kind = type(value)
        if kind not in CONTAINERS and not _is_named_tuple(kind):
            raise StateError(f"cannot save `{path}`: a container of type {kind.__qualname__}")
        if kind is list and (packed := self._pack(value, name)) is not None:
            return packed
        base = base_of_container(value)
        if base is dict:
            return self._encode_dict(value, path, name, depth=depth)
        elements = [
            self.encode(element, f"{path}[{index}]", f"{name}.{index}", depth=depth)
            for index, element in enumerate(base.__iter__(value))
        ]
        if kind is list:
            return elements
        if base is tuple:
            return {"__tuple__": elements} if kind is tuple else {"__named__": elements, "type": _address(kind)}
        if base is deque:
            return {"__deque__": elements, "length": value.maxlen}
        return {"__set__": elements, "frozen": kind is frozenset}

    def _encode_dict(self, value: Any, path: str, name: str, *, depth: int) -> Json:
        pairs = []
        for index, (key, element) in enumerate(dict.items(value)):
            key_tree = self.encode(key, f"{path}[{index}]", f"{name}.{index}", depth=depth)
            value_tree = self.encode(element, f"{path}[{key!r}]", f"{name}.{index}v", depth=depth)
            pairs.append([key_tree, value_tree])
        return {"__dict__": pairs, "type": type(value).__name__}

    def _pack(self, value: list[Any], name: str) -> Json | None:
        """Encode a long list of floats, or of ints of 64 bits, as a tensor; return None for any other list."""
        if len(value) < _LEAST_PACKED or type(value[0]) not in (int, float):
            return None
        kind = "d" if type(value[0]) is float else "q"
        if not all(type(number) is type(value[0]) for number in value):
            return None
        try:
            numbers = array(kind, value)
        except OverflowError:
            return None
        room = max(_LEAST_ROOM, 1 << len(value).bit_length())
        packed = torch.zeros(room, dtype=_PACKED_DTYPES[kind], device="cpu")
        packed[: len(value)] = torch.frombuffer(numbers, dtype=packed.dtype)
        return {_PACKED: self._put(name, packed), "length": len(value), "kind": kind}


def _encode_scalar(value: Any, path: str) -> Json:
    kind = type(value)
    if kind is bytes:
        return {"__bytes__": value.hex()}
    if kind is complex:
        return {"__complex__": [repr(value.real), repr(value.imag)]}
    if kind is range:
        return {"__range__": [value.start, value.stop, value.step]}
    if kind is PosixPath:
        return {"__path__": str(value)}
    return json_codec.encode(value, (path,), _no_tensor)


def _no_tensor(path: Any, tensor: Tensor) -> str:
    raise StateError(f"cannot save `{path}`: a tensor")


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and tuple in kind.__bases__ and "_fields" in vars(kind) and "__new__" in vars(kind)


def _address(kind: type) -> str:
    """Return the text by which `_class_at` finds a class in another process."""
    return f"{kind.__module__}:{kind.__qualname__}"


def is_used_up(tensor: Tensor) -> bool:
    """Return whether a backward pass has freed the graph of a tensor.

    Only the value of such a tensor is left: torch refuses a further backward pass.
    """
    ahead = [tensor.grad_fn]
    seen = set[Any]()
    while ahead and len(seen) < 1000:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for name in _saved_names(type(node)):
            try:
                getattr(node, name)
            except RuntimeError:
                return True
        ahead.extend(following for following, _ in node.next_functions)
    return False


@functools.cache
def _saved_names(kind: type) -> tuple[str, ...]:
    """Return the names of attributes that nodes of a kind keep for the backward pass."""
    return tuple(name for name in dir(kind) if name.startswith("_saved_"))


# --- decoding -------------------------------------------------------------------------------------------------


class Decoder:
    """Decodes the variables of one moment, in the order in which they were encoded."""

    def __init__(self, get: GetTensor, find: Find, first_paths: Mapping[int, str]) -> None:
        """Begin with nothing decoded.

        Args:
            get: returns a saved tensor by its key.
            find: returns the object at a path of this process's walk, or of an attached object.
            first_paths: `LoopWalk.first_paths` of this process's walk. An object that was reached first at another path
                is not filled.
        """
        self._get = get
        self._find = find
        self._first_paths = first_paths
        self._decoded: dict[str, Any] = {}
        """decoded values by path"""
        self._filled: set[int] = set()
        """ids of objects that have got a value, because each object takes only one"""

    def decode(self, tree: Json, path: str, now: Any = _MISSING) -> Any:
        """Decode the value that was encoded at `path`.

        Args:
            tree: the encoded value.
            path: path of the value.
            now: the value that is at this path in this process, which is filled if it fits.

        Returns:
            `now` if it was filled, otherwise a new object.

        Raises:
            StateError: the value can neither be filled nor be made.
        """
        if id(now) in self._filled or self._first_paths.get(id(now), path) != path:
            now = _MISSING
        value = self._decode(tree, path, now)
        if type(value) not in SCALARS:
            self._filled.add(id(value))
        self._decoded[path] = value
        return value

    def _decode(self, tree: Json, path: str, now: Any) -> Any:
        if isinstance(tree, list):
            fresh = self._elements(tree, path, now if type(now) is list else ())
            if type(now) is not list:
                return fresh
            now[:] = fresh
            return now
        if not isinstance(tree, dict):
            return tree
        tag = next(iter(tree))
        decode = _DECODERS.get(tag)
        if decode is None:
            return json_codec.decode(tree, lambda key, device: self._get(key))
        return decode(self, tree[tag], tree, path, now)

    def _elements(self, trees: list[Json], path: str, now: Any) -> list[Any]:
        """Decode the elements of a container. now: the container that is there, or ()."""
        present = list(now)
        return [
            self.decode(tree, f"{path}[{index}]", present[index] if index < len(present) else _MISSING)
            for index, tree in enumerate(trees)
        ]

    # The methods that follow are the values of _DECODERS. Each takes the tagged content of a tree, the whole tree, the
    # path of the value, and the value that is there now.

    def _same(self, content: str, tree: Json, path: str, now: Any) -> Any:
        """Return the object that has another name, too."""
        return self._decoded[content] if content in self._decoded else self._find(content)

    def _tensor(self, content: str, tree: Json, path: str, now: Any) -> Any:
        """Decode a tensor, into the memory of the present tensor if that has the same form."""
        saved = self._get(content)
        if isinstance(now, Tensor) and can_be_filled(now, saved):
            with torch.no_grad():
                now.copy_(saved)
            return now
        fresh = saved.clone().to(nearest_device(tree["device"]))
        return fresh.requires_grad_() if tree.get("requires_grad") else fresh

    def _packed(self, content: str, tree: Json, path: str, now: Any) -> Any:
        """Decode a list of numbers."""
        numbers = self._get(content)[: tree["length"]].tolist()
        if type(now) is not list:
            return numbers
        now[:] = numbers
        return now

    def _array(self, content: str, tree: Json, path: str, now: Any) -> Any:
        """Decode a NumPy array, into the memory of the present array if that has the same form."""
        fresh = json_codec.decode(tree, lambda key, device: self._get(key))
        has_same_form = type(now) is type(fresh) and now.shape == fresh.shape and now.dtype == fresh.dtype
        if not has_same_form or not now.flags.writeable:
            return fresh
        now[...] = fresh
        return now

    def _generator(self, content: Json, tree: Json, path: str, now: Any) -> Any:
        """Decode the state of a random number generator into the present generator, which must exist."""
        state = json_codec.decode(content, lambda key, device: self._get(key))
        if generators.kind_of(now) != state["kind"]:
            raise StateError(f"cannot put back `{path}`: there is no {state['kind']}")
        generators.put_back(now, state)
        return now

    def _module(self, content: str, tree: Json, path: str, now: Any) -> Any:
        """Decode the tensors of a module into the present module, which must exist."""
        tensors = tree["tensors"]
        if not isinstance(now, ModuleTensors) or now.tensors.keys() != tensors.keys():
            raise StateError(f"cannot put back `{path}`: there is no {content} with the same tensors")
        pairs = [(now.tensors[name], self._get(tensor_tree[_TENSOR])) for name, tensor_tree in tensors.items()]
        if not all(can_be_filled(target, saved) for target, saved in pairs):
            raise StateError(f"cannot put back `{path}`: its tensors have other shapes")
        with torch.no_grad():
            for target, saved in pairs:
                target.copy_(saved)
        return now.module

    def _enum(self, content: str, tree: Json, path: str, now: Any) -> Any:
        """Decode a member of an enumeration, whose class the present value must have."""
        members = vars(type(now)).get("_member_map_") if now is not _MISSING else None
        if not isinstance(members, dict) or type(now).__qualname__ != content or tree["name"] not in members:
            raise StateError(f"cannot put back `{path}`: there is no member of {content}")
        return members[tree["name"]]

    def _tuple(self, content: list[Json], tree: Json, path: str, now: Any) -> Any:
        """Decode a tuple. The present tuple stays if all its elements are the decoded objects."""
        present = now if type(now) is tuple else ()
        elements = self._elements(content, path, present)
        unchanged = len(present) == len(elements) and all(map(_is_same, present, elements))
        return present if unchanged and type(now) is tuple else tuple(elements)

    def _named(self, content: list[Json], tree: Json, path: str, now: Any) -> Any:
        """Decode a named tuple, of the class that the script has defined in this process."""
        kind = type(now) if now is not _MISSING and _address(type(now)) == tree["type"] else _class_at(tree["type"])
        if kind is None or not _is_named_tuple(kind):
            raise StateError(f"cannot put back `{path}`: there is no {tree['type']}")
        return tuple.__new__(kind, self._elements(content, path, ()))

    def _deque(self, content: list[Json], tree: Json, path: str, now: Any) -> Any:
        """Decode a deque with its greatest length."""
        fits = type(now) is deque and now.maxlen == tree["length"]
        elements = self._elements(content, path, now if fits else ())
        target = now if fits else deque(maxlen=tree["length"])
        target.clear()
        target.extend(elements)
        return target

    def _set(self, content: list[Json], tree: Json, path: str, now: Any) -> Any:
        """Decode a set. Its elements must have their former order, because training may go through them."""
        elements = self._elements(content, path, ())
        kind = frozenset if tree["frozen"] else set
        fresh = kind(elements)
        if list(fresh) != elements:
            raise StateError(f"cannot put back `{path}`: the order of a set differs")
        if type(now) is not set or kind is frozenset:
            return fresh
        now.clear()
        now.update(elements)
        if list(now) != elements:
            raise StateError(f"cannot put back `{path}`: the order of a set differs")
        return now

    def _dict(self, content: list[list[Json]], tree: Json, path: str, now: Any) -> Any:
        """Decode a dict of any of the builtin kinds, in its order."""
        kind = _DICTS[tree["type"]]
        present: Mapping[Any, Any] = now if type(now) is kind else {}
        pairs = []
        for index, (key_tree, value_tree) in enumerate(content):
            key = self.decode(key_tree, f"{path}[{index}]")
            pairs.append((key, self.decode(value_tree, f"{path}[{key!r}]", present.get(key, _MISSING))))
        if type(now) is not kind:
            if kind is defaultdict:
                raise StateError(f"cannot put back `{path}`: there is no defaultdict")
            return kind(pairs)
        now.clear()
        for key, value in pairs:
            now[key] = value
        return now


_DECODERS: Mapping[str, Callable[[Decoder, Any, Json, str, Any], Any]] = {
    _SAME: Decoder._same,
    _TENSOR: Decoder._tensor,
    _PACKED: Decoder._packed,
    "__array__": Decoder._array,
    "__generator__": Decoder._generator,
    "__module__": Decoder._module,
    "__enum__": Decoder._enum,
    "__tuple__": Decoder._tuple,
    "__named__": Decoder._named,
    "__deque__": Decoder._deque,
    "__set__": Decoder._set,
    "__dict__": Decoder._dict,
    "__bytes__": lambda decoder, content, tree, path, now: bytes.fromhex(content),
    "__complex__": lambda decoder, content, tree, path, now: complex(*map(float, content)),
    "__range__": lambda decoder, content, tree, path, now: range(*content),
    "__path__": lambda decoder, content, tree, path, now: PosixPath(content),
}


def can_be_filled(target: Tensor, saved: Tensor) -> bool:
    """Return whether a tensor has the shape and dtype of a saved tensor, and memory of its own for each number."""
    has_same_form = target.shape == saved.shape and target.dtype == saved.dtype and target.layout is torch.strided
    if not has_same_form or target.grad_fn is not None or target.is_inference() or target.is_meta:
        return False
    return all(stride for stride, size in zip(target.stride(), target.shape, strict=True) if size > 1)


def _class_at(address: str) -> type | None:
    """Return the class at an address in a module of the script's that is imported already; None otherwise."""
    module, _, name = address.partition(":")
    if not is_script_module(module):
        return None
    found = vars(sys.modules[module]).get(name)
    return found if isinstance(found, type) else None


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and type(one) in (int, str, bool, float) and one == other)

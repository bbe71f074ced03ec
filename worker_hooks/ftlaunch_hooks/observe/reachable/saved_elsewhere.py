"""Tells which of a script's objects the attached objects hold, and therefore save, whatever the script's names are.

The walk and the checks of loops make a SavedElsewhere for one moment and one thread. No foreign code runs.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Collection, Iterator, Mapping
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ftlaunch_hooks.observe.reachable.fingerprints import base_of_container, container_length
from ftlaunch_hooks.observe.reachable.kinds import SCALARS, Category, instance_dict, is_ours, kind_of_type
from ftlaunch_hooks.tensors.dtypes import local_of

_MAX_DEPTH = 3
"""levels of objects within an attached object, as the schedulers of a SequentialLR"""
_MOST_ELEMENTS = 1000
"""largest number of elements of a list or a dict that are searched: a data set may have millions"""
_MOST_READ_LEVELS = 6
"""levels of objects within an iterator that are searched"""
_MOST_READ_OBJECTS = 2000
"""number of objects within an iterator after which the search ends"""
_CONTAINERS = (dict, list, tuple)
_KEPT_BY_LOOPS = "kept by batches()"


def name_of_kept(target: object) -> str:
    """Return a name, among those of attached objects, for a data set that job.batches() saves.

    The name means nothing in another process, where the loops find the data set through its loader.
    """
    return f"{_KEPT_BY_LOOPS} {id(target)}"


class SavedElsewhere:
    """The objects that attached objects hold at the moment of construction."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        """Search the attached objects.

        Args:
            objects: attached objects and others that are saved, by name; data sets that job.batches() saves have names
                of `name_of_kept`.
        """
        self._objects = objects
        self._ids: set[int] = set()
        self._tensors: list[Tensor] = []
        self._memory: set[int] | None = None
        """addresses of the tensors' memory; found when first asked for"""
        self._paths: dict[int, str] | None = None
        """names by id; found when first asked for"""
        for name, target in objects.items():
            if not name.startswith(_KEPT_BY_LOOPS):
                self._add(target, _MAX_DEPTH)
        attached = set(self._ids)
        for name, target in objects.items():
            if name.startswith(_KEPT_BY_LOOPS):
                self._add(target, _MAX_DEPTH)
        self._ids_of_loops = self._ids - attached

    def _add(self, value: Any, depth: int) -> None:
        """Add a value, and the values within. depth: levels of objects that may be entered from here."""
        kind = type(value)
        if kind in SCALARS or id(value) in self._ids:
            return  # equal numbers or words may be one object, which tells nothing
        self._ids.add(id(value))
        if issubclass(kind, Tensor):
            self._tensors.append(value)
        elif depth:
            self._add_held(value, depth - 1)

    def _add_held(self, value: Any, depth: int) -> None:
        kind = type(value)
        if issubclass(kind, nn.Module):
            self._add_module(value)
        elif issubclass(kind, Optimizer):
            for group in value.param_groups:
                self._add_tensors(group["params"])
            for slots in value.state.values():
                if type(slots) is dict:
                    self._add_tensors(slots.values())
        elif issubclass(kind, _CONTAINERS) and container_length(value):
            base = base_of_container(value)
            elements = dict.values(value) if base is dict else base.__iter__(value)
            for element in itertools.islice(elements, _MOST_ELEMENTS):
                self._add(element, depth)
        else:
            for held in list(instance_dict(value).values()):
                self._add(held, depth)

    def _add_module(self, root: nn.Module) -> None:
        for module in _modules(root):
            self._ids.add(id(module))
            held = instance_dict(module)
            for group in ("_parameters", "_buffers"):
                if tensors := held.get(group):
                    self._add_tensors(tensors.values())

    def _add_tensors(self, values: Collection[Any]) -> None:
        """Add tensors, and containers that an optimizer may hold beside tensors."""
        self._ids.update(map(id, values))
        for value in values:
            if isinstance(value, Tensor):
                self._tensors.append(value)
            elif type(value) in _CONTAINERS:
                self._add_held(value, 1)

    def __call__(self, value: object) -> bool:
        """Return whether an attached object holds a value, or a tensor in whose memory the value lies."""
        if id(value) in self._ids:
            return True
        if not issubclass(type(value), Tensor):
            return False
        if self._memory is None:
            self._memory = set(map(_memory_of_saved, self._tensors))
            self._memory.discard(0)
        return _memory(value) in self._memory  # type: ignore[arg-type]

    def is_kept_by_loops(self, value: object) -> bool:
        """Return whether job.batches() saves a value, and puts it back later than the Survey compares."""
        return id(value) in self._ids_of_loops

    def path_of(self, value: Any) -> str | None:
        """Return the name by which another process finds a value in the attached objects; None for other values.

        Attached objects have names, and so have modules and tensors within.
        """
        if id(value) not in self._ids:
            return None
        if self._paths is None:
            self._paths = {id(held): path for path, held in self.by_path().items()}
        return self._paths.get(id(value))

    def by_path(self) -> dict[str, Any]:
        """Return the attached objects, and the modules and tensors within, by name."""
        found: dict[str, Any] = {}
        for name, target in self._objects.items():
            if name.startswith(_KEPT_BY_LOOPS):
                continue
            found[f"attached {name}"] = target
            if issubclass(type(target), nn.Module):
                for path, module in nn.Module.named_modules(target):
                    found.setdefault(f"attached {name}.{path}", module)
                    for group in (module._parameters, module._buffers):
                        found.update({f"attached {name}.{path}.{key}": tensor for key, tensor in group.items()})
        return found

    def is_read_by(self, iterator: object) -> bool:
        """Return whether an iterator reads an attached object or a DataLoader.

        DataOrder speaks of DataLoaders whose position is lost, but does not see iterators that were made before
        attach(). Therefore an iterator of a DataLoader is judged here. An itertools.cycle holds the elements that it
        has read, and does not read its source again.
        """
        if isinstance(iterator, _BaseDataLoaderIter):
            order = iterator._index_sampler
            data = iterator._dataset
            is_made_by_script = not isinstance(order, Sampler) and not isinstance(data, IterableDataset)
            return is_made_by_script or any(self(source) for source in (order, getattr(order, "sampler", None), data))
        seen = {id(iterator)}
        ahead = [iterator]
        for _ in range(_MOST_READ_LEVELS):
            following: list[object] = []
            for value in ahead:
                if type(value) is itertools.cycle:
                    continue
                if self(value) or issubclass(type(value), (DataLoader, _BaseDataLoaderIter)) or _is_ours(value):
                    return True
                following += [held for held in _inside(value) if id(held) not in seen]
            seen.update(map(id, following))
            if len(seen) > _MOST_READ_OBJECTS:
                return False
            ahead = following
        return False


def _modules(root: nn.Module) -> Iterator[nn.Module]:
    """Yield a module and all modules within, each once."""
    ahead = [root]
    seen = set[int]()
    while ahead:
        module = ahead.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield module
            children = instance_dict(module).get("_modules")
            ahead += [child for child in (children or {}).values() if child is not None]


def _memory_of_saved(tensor: Tensor) -> int:
    """Return the address of a tensor's memory; 0 for an ordinary tensor without memory."""
    if type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided:
        return tensor.untyped_storage().data_ptr()
    return _memory(tensor)


def _memory(tensor: Tensor) -> int:
    """Return the address of a tensor's memory, or the tensor's id if the tensor has no memory."""
    try:
        return int(local_of(tensor).untyped_storage().data_ptr()) or id(tensor)
    except (NotImplementedError, RuntimeError):  # sparse, or a subclass without memory of its own
        return id(tensor)


def _is_ours(value: object) -> bool:
    """Return whether a value is a generator of these hooks, as steps() returns."""
    return isinstance(value, GeneratorType) and is_ours(value.gi_code.co_filename)


def _inside(value: object) -> Iterator[object]:
    """Yield the values within a generator, an iterator, a container or an object with attributes."""
    kind = kind_of_type(type(value))
    iterates = any("__next__" in vars(base) for base in type(value).__mro__)
    if type(value) is GeneratorType and value.gi_frame is not None:
        frame = value.gi_frame
        yield from list(frame.f_locals.values())
        yield from (frame.f_globals[name] for name in frame.f_code.co_names if name in frame.f_globals)
    if iterates or type(value) in _CONTAINERS:
        yield from gc.get_referents(value)
    elif kind.category in (Category.OBJECT, Category.LOADER):
        yield from list(instance_dict(value).values())

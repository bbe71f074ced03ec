"""Which of a script's objects the attached ones hold: they are saved, under whatever name a script has them."""

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

_DEEP = 3  # objects in attached objects: the schedulers of a SequentialLR
_ITEMS = 1000  # of a list or a dict: a data set may have millions
_REACH = 6, 2000  # objects in generators: how deep, and how many
_CONTAINERS = (dict, list, tuple)
_OF_LOOPS = "kept by batches()"


def name_of_kept(target: object) -> str:
    """Return the name, among those of attached objects, of what job.batches() saves: a data set.

    The loops find it through its loader, in another process, too. The name means nothing there.
    """
    return f"{_OF_LOOPS} {id(target)}"


class SavedElsewhere:
    """As of the moment it is made."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        """objects: what is attached and saved, by name."""
        self._objects = objects
        self._ids: set[int] = set()
        self._tensors: list[Tensor] = []
        self._memory: set[int] | None = None  # addresses; found when first asked for
        self._paths: dict[int, str] | None = None
        for name, target in objects.items():
            if not name.startswith(_OF_LOOPS):
                self._add(target, _DEEP)
        attached = set(self._ids)
        for name, target in objects.items():
            if name.startswith(_OF_LOOPS):
                self._add(target, _DEEP)
        self._ids_of_loops = self._ids - attached

    def _add(self, value: Any, depth: int) -> None:
        kind = type(value)
        if kind in SCALARS or id(value) in self._ids:
            return  # of numbers and words one object may stand for all that are equal
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
            for one in itertools.islice(elements, _ITEMS):
                self._add(one, depth)
        else:
            for one in list(instance_dict(value).values()):
                self._add(one, depth)

    def _add_module(self, root: nn.Module) -> None:
        for module in _modules(root):
            self._ids.add(id(module))
            held = instance_dict(module)
            for group in ("_parameters", "_buffers"):
                if tensors := held.get(group):
                    self._add_tensors(tensors.values())

    def _add_tensors(self, values: Collection[Any]) -> None:
        """Tensors, and what an optimizer may hold beside them."""
        self._ids.update(map(id, values))
        for value in values:
            if isinstance(value, Tensor):
                self._tensors.append(value)
            elif type(value) in _CONTAINERS:
                self._add_held(value, 1)

    def __call__(self, value: object) -> bool:
        """Whether an attached object holds a value, or the value lies in the memory of one that is held."""
        if id(value) in self._ids:
            return True
        if not issubclass(type(value), Tensor):
            return False
        if self._memory is None:
            self._memory = {
                one.untyped_storage().data_ptr() if type(one) in (Tensor, nn.Parameter) and one.layout is torch.strided
                else _memory(one)
                for one in self._tensors
            }  # fmt: skip
            self._memory.discard(0)
        return _memory(value) in self._memory  # type: ignore[arg-type]

    def is_kept_by_loops(self, value: object) -> bool:
        """Whether job.batches() saves a value: it is put back there, and what was seen before that means nothing."""
        return id(value) in self._ids_of_loops

    def path_of(self, value: Any) -> str | None:
        """The name by which another process finds an attached object, or a module or tensor within; None for others."""
        if id(value) not in self._ids:
            return None
        if self._paths is None:
            self._paths = {id(held): path for path, held in self.by_path().items()}
        return self._paths.get(id(value))

    def by_path(self) -> dict[str, Any]:
        """The attached objects, and the modules and tensors within, by name."""
        found: dict[str, Any] = {}
        for name, target in self._objects.items():
            if name.startswith(_OF_LOOPS):
                continue
            found[f"attached {name}"] = target
            if issubclass(type(target), nn.Module):
                for path, module in nn.Module.named_modules(target):
                    found.setdefault(f"attached {name}.{path}", module)
                    for group in (module._parameters, module._buffers):
                        found.update({f"attached {name}.{path}.{key}": one for key, one in group.items()})
        return found

    def is_read_by(self, iterator: object) -> bool:
        """Whether an iterator reads what is attached, or a DataLoader: of those data_order.py speaks.

        An itertools.cycle on the way holds what it has read, and nobody saves that: then nothing is read again.
        It does not see iterators that were made before attach(): a DataLoader's iterator itself is judged here.
        """
        if isinstance(iterator, _BaseDataLoaderIter):
            order, data = iterator._index_sampler, iterator._dataset
            made = not isinstance(order, Sampler) and not isinstance(data, IterableDataset)  # batches of the script's
            return made or any(self(one) for one in (order, getattr(order, "sampler", None), data))
        seen, ahead = {id(iterator)}, [iterator]
        for _ in range(_REACH[0]):
            following: list[object] = []
            for one in ahead:
                if type(one) is itertools.cycle:
                    continue
                if self(one) or issubclass(type(one), (DataLoader, _BaseDataLoaderIter)) or _is_ours(one):
                    return True
                following += [held for held in _inside(one) if id(held) not in seen]
            seen.update(map(id, following))
            if len(seen) > _REACH[1]:
                return False
            ahead = following
        return False


def _modules(root: nn.Module) -> Iterator[nn.Module]:
    ahead, seen = [root], set[int]()
    while ahead:
        module = ahead.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield module
            children = instance_dict(module).get("_modules")
            ahead += [child for child in (children or {}).values() if child is not None]


def _memory(tensor: Tensor) -> int:
    try:
        return int(local_of(tensor).untyped_storage().data_ptr()) or id(tensor)
    except (NotImplementedError, RuntimeError):  # sparse, or a subclass without memory of its own
        return id(tensor)


def _is_ours(value: object) -> bool:
    """Whether it is what steps() has returned."""
    return isinstance(value, GeneratorType) and is_ours(value.gi_code.co_filename)


def _inside(value: object) -> Iterator[object]:
    """What a generator, an iterator or a container holds; nothing of modules, classes and functions."""
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

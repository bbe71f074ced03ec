"""Which of a script's objects the attached ones hold: they are saved, under whatever name a script has them."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import GeneratorType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ftlaunch_hooks.observe.unsaved.value_looks import PLAIN, is_ours

_DEEP = 3  # objects in attached objects: the schedulers of a SequentialLR
_ITEMS = 1000  # of a list or a dict: a data set may have millions
_REACH = 6, 2000  # objects in generators: how deep, and how many


class SavedElsewhere:
    """As of the moment it is made."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        """objects: as attach() takes them, the frozen ones included."""
        self._ids: set[int] = set()
        self._memory: set[int] = set()
        for target in objects.values():
            self._add(target, _DEEP)

    def _add(self, value: Any, depth: int) -> None:
        if isinstance(value, Tensor):
            self._memory.add(_memory(value))
            return
        if isinstance(value, PLAIN) or id(value) in self._ids:
            return  # of numbers and words one object may stand for all that are equal
        self._ids.add(id(value))
        for held in _held(value) if depth else ():
            self._add(held, depth - 1)

    def __call__(self, value: object) -> bool:
        """Whether an attached object holds it, or lies in the same memory."""
        return id(value) in self._ids or (isinstance(value, Tensor) and _memory(value) in self._memory)

    def is_read_by(self, iterator: object) -> bool:
        """Whether an iterator reads what is attached, or a DataLoader: of those data_order.py speaks.

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
                if self(one) or isinstance(one, (DataLoader, _BaseDataLoaderIter)) or _is_ours(one):
                    return True
                following += [held for held in _inside(one) if id(held) not in seen]
            seen.update(map(id, following))
            if len(seen) > _REACH[1]:
                return False
            ahead = following
        return False


def _held(value: Any) -> Iterable[Any]:
    if isinstance(value, nn.Module):
        return [*value.modules(), *value.parameters(), *nn.Module.buffers(value)]
    if isinstance(value, Optimizer):
        groups = [parameter for group in value.param_groups for parameter in group["params"]]
        return [*groups, *(held for state in value.state.values() for held in state.values())]
    if isinstance(value, Mapping):
        return islice(list(value.values()), _ITEMS)
    if isinstance(value, (list, tuple)):
        return islice(value, _ITEMS)
    return list(getattr(value, "__dict__", {}).values())


def _memory(tensor: Tensor) -> int:
    local: Any = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    try:
        return int(local.untyped_storage().data_ptr()) or id(tensor)
    except (NotImplementedError, RuntimeError):  # sparse, or a subclass without memory of its own
        return id(tensor)


def _is_ours(value: object) -> bool:
    """Whether it is what steps() has returned."""
    return isinstance(value, GeneratorType) and is_ours(value.gi_code.co_filename)


def _inside(value: object) -> Iterator[object]:
    """What a generator, an iterator or a container holds; nothing of modules, classes and functions."""
    if hasattr(type(value), "__next__") or isinstance(value, (list, tuple, dict)):
        yield from gc.get_referents(value)
    elif type(value).__module__ not in ("builtins", "types"):
        yield from getattr(value, "__dict__", {}).values()

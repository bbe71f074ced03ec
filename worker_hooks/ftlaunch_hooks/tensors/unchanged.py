"""Tells in a tenth of a millisecond whether a structure has changed since the last step, which is rare.

Collecting a model's state_dict() costs a millisecond where a hundred tensors are attached, as much as copying them.
Plain dictionaries and lists decide which tensors there are. While these containers hold the same objects, and the
tensors lie in the same memory, only values have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from operator import is_
from typing import Any

from torch import Tensor

Containers = tuple[list[dict[Any, Any]], list[Collection[Any]]]
"""the dictionaries, and the lists and sets"""


class Unchanged:
    """The content of containers and the memory of tensors, as they were at one moment."""

    def __init__(self, find: Callable[[], Containers], tensors: Sequence[Tensor]) -> None:
        """Record the state of now.

        Args:
            find: returns the containers; called again at each comparison, as load_state_dict() makes new ones.
            tensors: plain tensors, no DTensors.
        """
        self._find = find
        self._tensors = tensors
        self._dicts, self._lists = find()
        self._filled = [container for container in self._dicts if container]  # an empty one is compared by its size
        self._sizes = self._count()
        self._held = list(self._contents())
        self._layouts = self._read_layouts()

    def holds(self) -> bool:
        """Whether nothing has changed since this object was made."""
        dicts, lists = self._find()
        return (
            len(dicts) == len(self._dicts)
            and len(lists) == len(self._lists)
            and all(map(is_, dicts, self._dicts))
            and all(map(is_, lists, self._lists))
            and self._count() == self._sizes
            and all(map(is_, self._contents(), self._held))
            and self._read_layouts() == self._layouts
        )

    def _count(self) -> list[int]:
        return [*map(len, self._dicts), *map(len, self._lists)]

    def _contents(self) -> Iterator[Any]:
        keys = chain.from_iterable(self._filled)
        values = chain.from_iterable(map(dict.values, self._filled))
        return chain(keys, values, chain.from_iterable(self._lists))

    def _read_layouts(self) -> list[list[Any]]:
        """Return what `p.data = x` changes although it keeps the tensor object."""
        return [list(map(read, self._tensors)) for read in (Tensor.data_ptr, Tensor.size, Tensor.stride)]

"""Whether a structure is still what it was, in a tenth of a millisecond: asked at every step, nearly always yes.

Taking a model's state_dict() apart costs a millisecond where a hundred tensors are attached, as much as copying
them. What decides which tensors there are lies in plain dictionaries and lists; as long as these hold the same
objects, and the tensors their memory, only values have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from operator import is_
from typing import Any

from torch import Tensor

Containers = tuple[list[dict[Any, Any]], list[Collection[Any]]]


class Unchanged:
    """What dictionaries and lists hold now, and where the memory of tensors lies."""

    def __init__(self, find: Callable[[], Containers], tensors: Sequence[Tensor]) -> None:
        """find: says which containers there are (load_state_dict() makes new ones). tensors: plain, no DTensors."""
        self._find, self._tensors = find, tensors
        self._dicts, self._lists = find()
        self._filled = [container for container in self._dicts if container]  # of the others the size says all
        self._sizes, self._held, self._places = self._count(), list(self._contents()), self._look()

    def holds(self) -> bool:
        """Whether all is still so."""
        dicts, lists = self._find()
        return (
            len(dicts) == len(self._dicts)
            and len(lists) == len(self._lists)
            and all(map(is_, dicts, self._dicts))
            and all(map(is_, lists, self._lists))
            and self._count() == self._sizes
            and all(map(is_, self._contents(), self._held))
            and self._look() == self._places
        )

    def _count(self) -> list[int]:
        return [*map(len, self._dicts), *map(len, self._lists)]

    def _contents(self) -> Iterator[Any]:
        keys, values = chain.from_iterable(self._filled), chain.from_iterable(map(dict.values, self._filled))
        return chain(keys, values, chain.from_iterable(self._lists))

    def _look(self) -> list[list[Any]]:
        """`p.data = x` keeps the object, but not these."""
        return [list(map(of, self._tensors)) for of in (Tensor.data_ptr, Tensor.size, Tensor.stride)]

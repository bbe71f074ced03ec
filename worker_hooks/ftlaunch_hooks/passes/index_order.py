"""The order of a loader's samples, as its sampler gives it: skipped to a place, looked at one batch ahead, known again.

A DataLoader asks its sampler for indices, and loads what they name. In the middle of a pass a resumed run asks for
those that were had, and loads nothing of them.
"""

from __future__ import annotations

import contextlib
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from ftlaunch_hooks.data.sample_seeds import mixed
from ftlaunch_hooks.passes.own_numbers import OwnNumbers
from ftlaunch_hooks.passes.worker_seeds import SeededIndex

# These draw from the process's generators before their first index and never after: nothing has to be kept apart.
_DRAW_AT_FIRST = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)


class Indices:
    """The indices of one pass. A DataLoader's iterator asks for them, in order."""

    def __init__(
        self,
        sampler: Any,
        *,
        skipped: int,
        seed_of_batches: int | None,
        numbers: OwnNumbers | None,
        before_first: Callable[[], None] | None,
        is_stream: bool = False,
    ) -> None:
        """Prepare a pass; the sampler is asked for its iterator when the first index is.

        Args:
            sampler: the loader's own.
            skipped: batches that were had before.
            seed_of_batches: from which each batch's seed is made, for workers; None: batches bring no seeds along.
            numbers: what the sampler draws from; None: from the process's generators.
            before_first: called before the sampler is asked for anything.
            is_stream: the indices name no samples, and no checksums of them are kept.
        """
        self._sampler, self._numbers, self._before_first = sampler, numbers, before_first
        self._seed = seed_of_batches
        self._skipped, self._is_stream = skipped, is_stream
        self._given = skipped  # number of the next index that the loader is given
        self._ahead: deque[Any] = deque()
        self._iterator: Iterator[Any] | None = None
        self._drawn = 0
        self._ended = False
        self._checksum = self._first = 0
        self._checksums: dict[int, int] = {0: 0}  # by number of indices, of those that training may still be at

    def start(self) -> int:
        """Ask for the indices that were had; return how many there were."""
        if self._iterator is None:
            if self._before_first is not None:
                self._before_first()
            self._iterator = self._run(lambda: iter(self._sampler))
            while self._drawn < self._skipped and not self._ended:
                self._draw()
            self._ahead.clear()
            self._given = self._drawn
        return min(self._drawn, self._skipped)

    def __iter__(self) -> Iterator[Any]:
        """Return the indices themselves: a DataLoader asks twice as its workers start."""
        return self

    def __next__(self) -> Any:
        """Return the next index, with a seed where it goes to a worker."""
        self.start()
        if not self._ahead:
            self._draw()
        if not self._ahead:
            raise StopIteration
        index, number = self._ahead.popleft(), self._given
        self._given += 1
        return index if self._seed is None else SeededIndex(index, mixed(self._seed, number))

    @property
    def are_asked_for(self) -> bool:
        """Whether the loader has been given an index."""
        return self._given > self._skipped

    def has_more(self, number: int) -> bool:
        """Whether there is an index number `number`, counted from 0 in this pass."""
        self.start()
        self._checksums.pop(number - 1, None)
        while self._drawn <= number and not self._ended:
            self._draw()
        return self._drawn > number

    def checksum(self, number: int) -> int:
        """Return a checksum of the first `number` indices. Those of smaller numbers are forgotten."""
        for older in [known for known in self._checksums if known < number]:
            del self._checksums[older]
        return self._checksums[number]

    def begins_as(self, sampler: Any, numbers: OwnNumbers) -> bool:
        """Whether another sampler gives the same first index. numbers: where this one's were at first."""
        self.start()
        index = numbers.run(lambda: next(iter(sampler), _END))
        return index is _END or _continue_checksum(0, index) == self._first

    def _draw(self) -> None:
        """Ask the sampler for one index more."""
        assert self._iterator is not None
        iterator = self._iterator
        index = self._run(lambda: next(iterator, _END))
        if index is _END:
            self._ended = True
            return
        self._drawn += 1
        if not self._is_stream:
            self._checksum = _continue_checksum(self._checksum, index)
            self._checksums[self._drawn] = self._checksum
            if self._drawn == 1:
                self._first = self._checksum
        if self._drawn > self._skipped:
            self._ahead.append(index)

    def _run(self, call: Callable[[], Any]) -> Any:
        return call() if self._numbers is None else self._numbers.run(call)


_END = object()


class IndexOrder:
    """Stands in a DataLoader for its sampler of batches, while an iterator is made."""

    def __init__(self, sampler: Any) -> None:
        """sampler: the loader's own, which it asks for indices."""
        self.sampler_of_loader = sampler
        self.indices: Indices | None = None
        """of a pass whose iterator is being made"""

    def __iter__(self) -> Iterator[Any]:
        """Return the indices of the pass that is being made; where the script makes one itself, the sampler's."""
        return iter(self.sampler_of_loader) if self.indices is None else self.indices

    def __len__(self) -> int:
        """Return the sampler's length."""
        return len(self.sampler_of_loader)


def draws_between_batches(sampler: Any) -> bool:
    """Whether a sampler may draw from the process's generators in the middle of a pass."""
    if type(sampler) is BatchSampler:
        return draws_between_batches(sampler.sampler)
    return type(sampler) not in _DRAW_AT_FIRST


def _continue_checksum(before: int, index: Any) -> int:
    """Return the checksum of what `before` stands for, followed by `index`."""
    if type(index) is list and index and type(index[0]) is int:
        with contextlib.suppress(TypeError, OverflowError):  # the others may be no whole numbers, or too large
            return zlib.crc32(array("q", index), before)
    if isinstance(index, (list, tuple)):
        for one in index:
            before = _continue_checksum(before, one)
        return before
    if isinstance(index, Tensor):
        return zlib.crc32(str(index.tolist()).encode(), before)
    # of other objects the words would tell where in memory they lie
    words = repr(index) if isinstance(index, (bool, int, float, str, bytes)) else type(index).__name__
    return zlib.crc32(words.encode(), before)

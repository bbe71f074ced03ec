"""The order of a loader's samples as its sampler gives it: skipped to a place, read one batch ahead, and compared.

A DataLoader asks its sampler for indices, and loads what they name. In the middle of a pass a resumed run asks the
sampler once more for the indices that were used before, and loads nothing for them. In this module an index is what the
sampler yields for one batch.
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

# These draw from the process's generators only before their first index, so they need no numbers of their own.
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
        """Prepare a pass. The sampler is asked for its iterator when the first index is wanted.

        Args:
            sampler: the loader's own.
            skipped: the number of batches that were used before.
            seed_of_batches: the seed from which each batch's seed for workers is made; None: batches carry no seeds.
            numbers: what the sampler draws from; None: the process's generators.
            before_first: called before the sampler is asked for anything.
            is_stream: whether the indices name no samples, so that no checksums of them are kept.
        """
        self._sampler = sampler
        self._numbers = numbers
        self._before_first = before_first
        self._seed = seed_of_batches
        self._skipped = skipped
        self._is_stream = is_stream
        self._given = skipped  # number of the next index that the loader is given
        self._ahead: deque[Any] = deque()  # indices that the sampler has given and the loader has not taken
        self._iterator: Iterator[Any] | None = None
        self._drawn = 0  # indices that the sampler has given
        self._ended = False
        self._checksum = 0  # of all indices drawn so far
        self._first = 0  # checksum of the first index
        self._checksums: dict[int, int] = {0: 0}  # number of indices -> checksum; only where training may still be

    def start(self) -> int:
        """Ask the sampler for the indices that were used before; return how many of them there are."""
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
        """Return the object itself: a DataLoader calls this twice while its workers start."""
        return self

    def __next__(self) -> Any:
        """Return the next index, with a seed if it goes to a worker."""
        self.start()
        if not self._ahead:
            self._draw()
        if not self._ahead:
            raise StopIteration
        index = self._ahead.popleft()
        number = self._given
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
        """Return a checksum of the first `number` indices. Checksums of fewer indices are dropped."""
        for older in [known for known in self._checksums if known < number]:
            del self._checksums[older]
        return self._checksums[number]

    def begins_as(self, sampler: Any, numbers: OwnNumbers) -> bool:
        """Whether another sampler gives the same first index. numbers: where this sampler's numbers were at first."""
        self.start()
        index = numbers.run(lambda: next(iter(sampler), _END))
        return index is _END or _continue_checksum(0, index) == self._first

    def _draw(self) -> None:
        """Ask the sampler for one more index."""
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
    """Takes the place of a DataLoader's sampler of batches while an iterator is made."""

    def __init__(self, sampler: Any) -> None:
        """Take the loader's own sampler, which the loader asks for indices."""
        self.sampler_of_loader = sampler
        self.indices: Indices | None = None
        """the indices of the pass whose iterator is being made; None while none is"""

    def __iter__(self) -> Iterator[Any]:
        """Return the indices of the pass that is being made; the sampler's iterator if the script makes one itself."""
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
    """Continue the checksum `before` with `index`."""
    if type(index) is list and index and type(index[0]) is int:
        with contextlib.suppress(TypeError, OverflowError):  # later elements may not be whole numbers of 64 bits
            return zlib.crc32(array("q", index), before)
    if isinstance(index, (list, tuple)):
        for element in index:
            before = _continue_checksum(before, element)
        return before
    if isinstance(index, Tensor):
        return zlib.crc32(str(index.tolist()).encode(), before)
    # repr() of any other object may contain its address in memory
    words = repr(index) if isinstance(index, (bool, int, float, str, bytes)) else type(index).__name__
    return zlib.crc32(words.encode(), before)

"""Random numbers of DataLoader workers as a function of the position in the data.

A DataLoader seeds its workers once, when its iterator is made. An iterator that is made after a resume begins in
mid-epoch, and its workers would draw other numbers for the same samples. So batches seed the generators anew for every
sample, and making an iterator draws nothing from the generators of the training loop.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of splitmix64


def mixed(seed: int, number: int) -> int:
    """64 bits from a seed and a number: splitmix64 (Steele, Lea and Flood 2014). Every bit depends on both."""
    value = (seed * _SECOND + (number + 1) * _GOLDEN) % 2**64
    value = (value ^ value >> 30) * _FIRST % 2**64
    value = (value ^ value >> 27) * _SECOND % 2**64
    return value ^ value >> 31


class SeededBatch(list[int]):
    """Indices of one rank's batch. In a DataLoader's worker each index comes with generators seeded for its sample.

    Python's, NumPy's and torch's generator on the CPU. In the training loop's process nothing is seeded: there the
    generators are a part of the rank's state.
    """

    def __init__(self, indices: Iterable[int], seed: int, first: int) -> None:
        """first: the number of the batch's first sample, over all ranks and epochs."""
        super().__init__(indices)
        self.seed, self.first = seed, first

    def __iter__(self) -> Iterator[int]:
        """The indices."""
        return super().__iter__() if get_worker_info() is None else self._seeding()

    def _seeding(self) -> Iterator[int]:
        for number, index in enumerate(super().__iter__(), self.first):
            _seed_generators(mixed(self.seed, number))
            yield index


def _seed_generators(seed: int) -> None:
    random.seed(seed)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed also asks for a GPU
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed >> 32)


@functools.cache
def leave_generators_alone(kind: type, position: Callable[[Any], int]) -> None:
    """From now on, making an iterator of a DataLoader whose sampler is a `kind` moves no generator.

    The seed of its workers, which the iterator draws, comes from the generator's own seed and `position(sampler)`
    instead. So it does not matter when a resumed script makes its iterator: before the loop, or in a step.
    """
    make: Any = DataLoader.__iter__

    @functools.wraps(make)
    def make_and_put_back(loader: Any) -> Any:
        held = [getattr(one, "sampler_of_loader", one) for one in (loader.batch_sampler, loader.sampler)]
        sampler = next((one for one in held if isinstance(one, kind)), None)
        if sampler is None:
            return make(loader)
        generator = torch.default_generator if loader.generator is None else loader.generator
        before = generator.get_state()
        generator.manual_seed(mixed(generator.initial_seed(), position(sampler)))
        try:
            return make(loader)
        finally:
            generator.set_state(before)

    DataLoader.__iter__ = make_and_put_back  # type: ignore[method-assign]

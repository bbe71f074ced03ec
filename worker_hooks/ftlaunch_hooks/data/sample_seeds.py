"""Makes random numbers of DataLoader workers a function of the position in the data.

A DataLoader seeds its workers once, when its iterator is made. An iterator that is made after a resume begins in the
middle of an epoch, and its workers would draw other numbers for the same samples. So batches seed the generators anew
for every sample, and making an iterator draws nothing from the generators of the training loop.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

# constants of splitmix64
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def mixed(seed: int, number: int) -> int:
    """Return 64 bits from a seed and a number, by splitmix64 (Steele, Lea and Flood 2014).

    Every bit depends on both.
    """
    value = (seed * _SECOND + (number + 1) * _GOLDEN) % 2**64
    value = (value ^ value >> 30) * _FIRST % 2**64
    value = (value ^ value >> 27) * _SECOND % 2**64
    return value ^ value >> 31


class SeededBatch(list[int]):
    """The indices of one rank's batch. Iterating in a DataLoader's worker seeds the generators for each index's sample.

    The generators are Python's, NumPy's and torch's on the CPU. In the training loop's process nothing is seeded: there
    the generators are a part of the rank's state.
    """

    def __init__(self, indices: Iterable[int], seed: int, first: int) -> None:
        """Take the indices. first: the number of the batch's first sample, over all ranks and epochs."""
        super().__init__(indices)
        self.seed = seed
        self.first = first

    def __iter__(self) -> Iterator[int]:
        """Yield the indices; in a worker, seed the generators before each of them."""
        return super().__iter__() if get_worker_info() is None else self._seeding()

    def _seeding(self) -> Iterator[int]:
        for number, index in enumerate(super().__iter__(), self.first):
            _seed_generators(mixed(self.seed, number))
            yield index


def _seed_generators(seed: int) -> None:
    random.seed(seed)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed GPUs
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed >> 32)


@functools.cache
def leave_generators_alone(kind: type, position: Callable[[Any], int]) -> None:
    """Change DataLoader so that making an iterator moves no generator if the loader's sampler is a `kind`.

    The seed of the workers, which the iterator draws, then comes from the generator's own seed and `position(sampler)`.
    So it does not matter when a resumed script makes its iterator: before the loop, or in a step.
    """
    make: Any = DataLoader.__iter__

    @functools.wraps(make)
    def make_and_put_back(loader: Any) -> Any:
        held = (loader.batch_sampler, loader.sampler)
        samplers = [getattr(sampler, "sampler_of_loader", sampler) for sampler in held]
        sampler = next((sampler for sampler in samplers if isinstance(sampler, kind)), None)
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

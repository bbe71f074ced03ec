"""Random numbers of a DataLoader's workers, from a seed for each batch: a batch that is read again draws the same.

A worker is seeded once, as it begins. A worker of a resumed run begins in the middle of a pass, or has not lived
through the passes before, and would draw other numbers for the same samples. So the order for a batch brings a seed
along: as it arrives in the worker, every generator there is seeded anew, those that the data set and the collator hold
as well.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import get_worker_info

from ftlaunch_hooks.data.sample_seeds import mixed
from ftlaunch_hooks.passes.held_generators import HeldGenerators
from ftlaunch_hooks.state.random_numbers import shared

_held: HeldGenerators | None = None  # in a worker: the generators that its data set and its collator hold


class SeededIndex:
    """What a sampler gives, on its way to a worker; there it is the index as the sampler gave it."""

    def __init__(self, index: Any, seed: int) -> None:
        """seed: 64 bits, for this batch alone."""
        self._index, self._seed = index, seed

    def __reduce__(self) -> tuple[Callable[[Any, int], Any], tuple[Any, int]]:
        """Have the worker call `_arrive`."""
        return _arrive, (self._index, self._seed)


def _arrive(index: Any, seed: int) -> Any:
    """In a worker: seed all generators, and return the index."""
    shared.seed_all(seed)
    for path, generator in _held or ():
        _seed_one(generator, mixed(seed, zlib.crc32(path.encode())))
    return index


def _seed_one(generator: Any, seed: int) -> None:
    if isinstance(generator, random.Random):
        generator.seed(seed)
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.seed(seed >> 32)


class WorkerStart:
    """Stands in a loader for its `worker_init_fn` while its workers are started."""

    def __init__(self, script_function: Callable[[int], Any] | None, collate: Any) -> None:
        """script_function: the loader's own `worker_init_fn`. collate: its `collate_fn`."""
        self._script_function, self._collate = script_function, collate

    def __call__(self, worker: int) -> None:
        """In a worker: call the script's function, and note which generators are to be seeded for each batch."""
        global _held  # noqa: PLW0603 - one process is one worker
        if self._script_function is not None:
            self._script_function(worker)
        info = get_worker_info()
        _held = HeldGenerators(None if info is None else info.dataset, self._collate)

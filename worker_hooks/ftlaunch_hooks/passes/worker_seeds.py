"""Gives a DataLoader's workers a seed for each batch, so that a batch that is read again draws the same numbers.

DataLoader itself seeds a worker once, when the worker begins. A worker of a resumed run begins in the middle of a pass,
or has not lived through the passes before, and would draw other numbers for the same samples. Therefore each index
that is sent to a worker carries a seed (index_order.py wraps it). When it arrives there, every generator is seeded
anew, including those that the data set and the collator hold.
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

_held: HeldGenerators | None = None  # set only in a worker: the generators that its data set and collator hold


class SeededIndex:
    """A sampler's index on its way to a worker. Unpickled there, it seeds the generators and is the plain index."""

    def __init__(self, index: Any, seed: int) -> None:
        """Take an index, and a seed of 64 bits for this batch alone."""
        self._index = index
        self._seed = seed

    def __reduce__(self) -> tuple[Callable[[Any, int], Any], tuple[Any, int]]:
        """Make the worker call `_arrive`."""
        return _arrive, (self._index, self._seed)


def _arrive(index: Any, seed: int) -> Any:
    """Give all generators of a worker the seed, and return the index. Runs in the worker."""
    shared.seed_all(seed)
    for path, generator in _held or ():
        _seed_generator(generator, mixed(seed, zlib.crc32(path.encode())))
    return index


def _seed_generator(generator: Any, seed: int) -> None:
    if isinstance(generator, random.Random):
        generator.seed(seed)
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.seed(seed >> 32)


class WorkerStart:
    """Takes the place of a loader's `worker_init_fn` while its workers are started."""

    def __init__(self, script_function: Callable[[int], Any] | None, collate: Any) -> None:
        """Take the loader's own `worker_init_fn` and its `collate_fn`."""
        self._script_function = script_function
        self._collate = collate

    def __call__(self, worker: int) -> None:
        """Call the script's function, and find the generators that are to be seeded for each batch.

        Runs in the worker.
        """
        global _held  # noqa: PLW0603 - one process is one worker
        if self._script_function is not None:
            self._script_function(worker)
        info = get_worker_info()
        _held = HeldGenerators(None if info is None else info.dataset, self._collate)

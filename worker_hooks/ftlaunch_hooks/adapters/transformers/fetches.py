"""Says once that batches are made with random numbers: those of a batch that was fetched ahead are not drawn again."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch
from torch.utils.data import get_worker_info

from ftlaunch_hooks.process.say import say

_DRAWN = (
    "random numbers are drawn where a batch is made ({where}): a resumed run skips batches without making them, draws"
    " others, and is not exact; draw them from the number of the sample, or before the training"
)


def watch(trainer: Any, loader: Any) -> None:
    """Look at the batches with which `trainer` trains. loader: where they come from. For one rank of all."""
    base = getattr(loader, "base_dataloader", loader)
    if base.num_workers:
        base.collate_fn = _CollateAndLook(base.collate_fn)
    else:
        trainer.get_batch_samples = _FetchAndLook(trainer.get_batch_samples)


class _FetchAndLook:
    """At the 2nd, 4th, 8th ... fetch of one iterator: the first one draws its order, too."""

    def __init__(self, fetch: Any) -> None:
        self._fetch, self._iterator = fetch, None
        self._fetches = 0
        self._told = False

    def __call__(self, iterator: Any, *args: Any) -> Any:
        """See Trainer.get_batch_samples."""
        if iterator is not self._iterator:
            self._iterator, self._fetches = iterator, 0
        self._fetches += 1
        if self._told or self._fetches == 1 or self._fetches & (self._fetches - 1):
            return self._fetch(iterator, *args)
        before = _numbers()
        batches = self._fetch(iterator, *args)
        if _numbers() != before:
            self._told = True
            say(_DRAWN.format(where="in the training process"))
        return batches


class _CollateAndLook:
    """In the first worker: nothing but data set and collator draws there."""

    def __init__(self, collate: Any) -> None:
        self._collate = collate
        self._before: object = None
        self._told = torch.zeros(1, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call] # each epoch has workers of its own

    def __call__(self, samples: Any) -> Any:
        """See DataLoader.collate_fn."""
        worker = get_worker_info()
        batch = self._collate(samples)
        if worker is None or worker.id != 0 or self._told[0]:
            return batch
        before, self._before = self._before, _numbers()
        if before is not None and self._before != before:
            self._told[0] = 1
            say(_DRAWN.format(where="in a worker of the DataLoader"))
        return batch


def _numbers() -> object:
    """Equal to what it was as long as nobody has drawn a number."""
    kind, keys, *rest = numpy.random.get_state(legacy=True)
    torchs = torch.get_rng_state().numpy().tobytes()
    return random.getstate(), torchs, kind, keys.tobytes(), *rest  # type: ignore[union-attr]

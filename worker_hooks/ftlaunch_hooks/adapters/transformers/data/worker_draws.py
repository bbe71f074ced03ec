"""Notices in the workers of a DataLoader that random numbers are drawn there."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import get_worker_info

from ftlaunch_hooks.adapters.transformers.data.numbers import Numbers, Reading, drawn_from


class WorkerDraws:
    """Stands in the place of a loader's collator and worker_init_fn.

    That a batch was made with random numbers is known before it comes.
    """

    def __init__(self, loader: Any) -> None:
        """loader: a DataLoader with workers, of which no iterator was made yet."""
        self.collate, self._begin = loader.collate_fn, loader.worker_init_fn
        self._numbers: Numbers | None = None
        self._first: Reading | None = None
        self._seen = torch.zeros(1, dtype=torch.uint8, device="cpu").share_memory_()  # type: ignore[no-untyped-call]
        loader.collate_fn, loader.worker_init_fn = self._collate, self._worker_begins

    @property
    def seen(self) -> bool:
        """Whether numbers were drawn for a batch that has come."""
        return bool(self._seen[0])

    def set_seen(self) -> None:
        """It is so, or was in an earlier attempt."""
        self._seen[0] = 1

    def _worker_begins(self, worker: int) -> None:
        """See DataLoader's worker_init_fn: the worker's generators are seeded."""
        if self._begin is not None:
            self._begin(worker)
        info = get_worker_info()
        self._numbers = Numbers(info.dataset if info else None, self.collate)
        self._first = self._numbers.read()

    def _collate(self, samples: Any) -> Any:
        """See DataLoader's collate_fn."""
        batch = self.collate(samples)
        if self._numbers is None or self._first is None or self.seen:
            return batch
        if drawn_from(self._first, self._numbers.read()):
            self.set_seen()
        return batch

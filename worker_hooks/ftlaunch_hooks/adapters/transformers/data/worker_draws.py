"""Notice random numbers that are drawn in the workers of a DataLoader.

WorkerDraws is made in the training process and copied into each worker. Its `seen` is in shared memory, so that the
training process knows of a draw before the batch arrives for which the numbers were drawn.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import get_worker_info

from ftlaunch_hooks.adapters.transformers.data.numbers import Numbers, Reading, drawn_from


class WorkerDraws:
    """Wraps a loader's collate_fn and worker_init_fn."""

    def __init__(self, loader: Any) -> None:
        """Wrap the functions of `loader`, a DataLoader with workers that has made no iterator yet."""
        self.collate = loader.collate_fn
        self._begin = loader.worker_init_fn
        self._numbers: Numbers | None = None
        self._first: Reading | None = None
        self._seen = torch.zeros(1, dtype=torch.uint8, device="cpu").share_memory_()  # type: ignore[no-untyped-call]
        loader.collate_fn = self._collate
        loader.worker_init_fn = self._worker_begins

    @property
    def seen(self) -> bool:
        """Whether a worker drew random numbers for a batch."""
        return bool(self._seen[0])

    def set_seen(self) -> None:
        """Record that a worker draws random numbers, now or in an earlier attempt."""
        self._seen[0] = 1

    def _worker_begins(self, worker: int) -> None:
        """Read the generators as a worker begins, which the DataLoader has seeded (worker_init_fn)."""
        if self._begin is not None:
            self._begin(worker)
        info = get_worker_info()
        self._numbers = Numbers(info.dataset if info else None, self.collate)
        self._first = self._numbers.read()

    def _collate(self, samples: Any) -> Any:
        """Collate a batch in a worker, and note whether numbers were drawn for it (collate_fn)."""
        batch = self.collate(samples)
        if self._numbers is None or self._first is None or self.seen:
            return batch
        if drawn_from(self._first, self._numbers.read()):
            self.set_seen()
        return batch

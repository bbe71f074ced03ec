"""Bring one of Accelerate's loaders back to a batch of a pass.

A DataLoaderShard reads one batch ahead of those that it hands out. Only this module touches what is private in
Accelerate's loaders; `check` refuses a version that lacks it. Fetches is the only caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard, SkipBatchSampler, skip_first_batches
from torch.utils.data import IterableDataset

from ftlaunch_hooks.adapters.refusal import refuse

_BEFORE_FETCH = "_update_state_dict"  # method that a DataLoaderShard calls before each fetch but the first of a pass
_OF_LOADER = (_BEFORE_FETCH, "skip_batches", "base_dataloader")


def check(loader: Any) -> None:
    """Raise AttachError where the loader of this version of Accelerate lacks a private part that is used."""
    missing = [name for name in _OF_LOADER if not hasattr(loader, name)] if reads_ahead(loader) else []
    if missing:
        import accelerate  # noqa: PLC0415 - for its version

        refuse(
            f"cannot keep this Trainer: accelerate {accelerate.__version__} has no {type(loader).__name__}"
            f".{missing[0]}, by which a loader is brought back to its batch; without ft.transformers.wrap() it runs as"
            " always"
        )


def reads_ahead(loader: Any) -> bool:
    """Whether a loader reads one batch more than it has handed out."""
    return type(loader) in (DataLoaderShard, DataLoaderDispatcher)


def base_of(loader: Any) -> Any:
    """Return the DataLoader that makes the batches."""
    return loader.base_dataloader if reads_ahead(loader) else loader


def cannot_skip(loader: Any) -> bool:
    """Whether the batches before a place must be made again, for lack of indices or because ranks share batches."""
    return isinstance(base_of(loader).dataset, IterableDataset) or type(loader) is DataLoaderDispatcher


def before_each_fetch(loader: Any, call: Callable[[], None]) -> None:
    """Have the loader call `call` before it reads a batch ahead; loaders that do not read ahead stay as they are."""
    if not reads_ahead(loader):
        return
    update = getattr(loader, _BEFORE_FETCH)

    def call_and_update() -> None:
        call()
        update()

    setattr(loader, _BEFORE_FETCH, call_and_update)


def read_on(loader: Any, had: int) -> Any:
    """Return a loader whose next pass makes all its batches, and hands out those after the first `had`."""
    if not reads_ahead(loader):
        return skip_first_batches(loader, had)
    loader.skip_batches = had
    return loader


def arrived(loader: Any) -> None:
    """Have later passes of a loader from `read_on` begin at their first batch."""
    if reads_ahead(loader):
        loader.skip_batches = 0


def skip(loader: Any, had: int, arrives: Callable[[int], None]) -> Any:
    """Return a loader that begins after the first `had` batches without making them.

    Args:
        loader: whose data set has indices.
        had: number of batches to skip.
        arrives: called with 0 before the first batch is made, and with 1 before the second.
    """
    skipping = skip_first_batches(loader, had)
    base = base_of(skipping)
    for sampler in (base.batch_sampler, base.sampler):
        if isinstance(sampler, SkipBatchSampler):
            sampler.batch_sampler = _ObservedIndices(sampler.batch_sampler, had, arrives)
    return skipping


class _ObservedIndices:
    """The indices of batches, with a call before those of the batches `had` and `had` + 1 are drawn."""

    def __init__(self, indices: Iterable[Any], had: int, arrives: Callable[[int], None]) -> None:
        self._indices = indices
        self._had = had
        self._arrives = arrives

    def __iter__(self) -> Iterator[Any]:
        indices = iter(self._indices)
        number = 0
        while True:
            if number - self._had in (0, 1):
                self._arrives(number - self._had)
            try:
                batch = next(indices)
            except StopIteration:
                return
            yield batch
            number += 1

    def __len__(self) -> int:
        return len(self._indices)  # type: ignore[arg-type]

"""Brings a loader back to a batch of a pass. What is private in Accelerate is touched here alone, and checked.

A DataLoaderShard has read one batch ahead of the batches that it hands out: that batch was made before the step whose
others were made after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard, SkipBatchSampler, skip_first_batches
from torch.utils.data import IterableDataset

from ftlaunch_hooks.adapters.refusal import refuse

_BEFORE_FETCH = "_update_state_dict"  # a DataLoaderShard calls it before each fetch, but for the first of a pass
_OF_LOADER = (_BEFORE_FETCH, "skip_batches", "base_dataloader")


def check(loader: Any) -> None:
    """Raises AttachError where this version of Accelerate has another loader."""
    missing = [name for name in _OF_LOADER if not hasattr(loader, name)] if reads_ahead(loader) else []
    if missing:
        import accelerate  # noqa: PLC0415 - for its version

        refuse(
            f"cannot keep this Trainer: accelerate {accelerate.__version__} has no {type(loader).__name__}"
            f".{missing[0]}, by which a loader is brought back to its batch; without ft.transformers.wrap() it runs as"
            " always"
        )


def reads_ahead(loader: Any) -> bool:
    """Whether a loader has read one batch more than it has handed out."""
    return type(loader) in (DataLoaderShard, DataLoaderDispatcher)


def base_of(loader: Any) -> Any:
    """The DataLoader that makes the batches."""
    return loader.base_dataloader if reads_ahead(loader) else loader


def cannot_skip(loader: Any) -> bool:
    """Whether the batches before the place must be made again: there are no indices, or several ranks share them."""
    return isinstance(base_of(loader).dataset, IterableDataset) or type(loader) is DataLoaderDispatcher


def before_each_fetch(loader: Any, call: Callable[[], None]) -> None:
    """Have `call` called before a batch is read ahead."""
    if not reads_ahead(loader):
        return
    update = getattr(loader, _BEFORE_FETCH)

    def call_and_update() -> None:
        call()
        update()

    setattr(loader, _BEFORE_FETCH, call_and_update)


def read_on(loader: Any, had: int) -> Any:
    """The loader, whose next pass makes all its batches and hands out those behind the first `had`."""
    if not reads_ahead(loader):
        return skip_first_batches(loader, had)
    loader.skip_batches = had
    return loader


def arrived(loader: Any) -> None:
    """The first of the batches was handed out: the next pass begins at its beginning."""
    if reads_ahead(loader):
        loader.skip_batches = 0


def skip(loader: Any, had: int, arrives: Callable[[int], None]) -> Any:
    """A loader that begins behind the first `had` batches, and makes none of those.

    arrives: called with 0 before the first batch is made, with 1 before the second.
    """
    skipping = skip_first_batches(loader, had)
    base = base_of(skipping)
    for sampler in (base.batch_sampler, base.sampler):
        if isinstance(sampler, SkipBatchSampler):
            sampler.batch_sampler = _Telling(sampler.batch_sampler, had, arrives)
    return skipping


class _Telling:
    """The indices of batches, and a call before those of two batches are drawn."""

    def __init__(self, indices: Iterable[Any], had: int, arrives: Callable[[int], None]) -> None:
        self._indices, self._had, self._arrives = indices, had, arrives

    def __iter__(self) -> Iterator[Any]:
        indices, number = iter(self._indices), 0
        while True:
            if number - self._had in (0, 1):
                self._arrives(number - self._had)
            try:
                one = next(indices)
            except StopIteration:
                return
            yield one
            number += 1

    def __len__(self) -> int:
        return len(self._indices)  # type: ignore[arg-type]

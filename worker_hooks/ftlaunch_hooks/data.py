"""Sampling that knows where it is, in samples, and goes on from there without reading what came before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

_MIX = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: seeds of epochs that no other seed shares


@dataclass(frozen=True)
class _Position:
    epoch: int = 0
    offset: int = 0  # samples of this epoch's permutation that are behind us, over all ranks
    consumed: int = 0  # samples in all epochs, over all ranks


class ResumableBatchSampler(Sampler[list[int]]):
    """Batches of dataset indices for one rank, endlessly, epoch after epoch.

    The permutation of an epoch depends on seed and epoch alone. A global batch is its next
    `batch_size * world_size` samples, rank by rank, so every sample comes once per epoch over all ranks. What
    is left at an epoch's end and does not fill a global batch is dropped (`drop_last`), or is the beginning
    of a batch that goes on into the next epoch.

    Iteration begins at the position, and does not change it: a DataLoader reads ahead, the position counts
    what the training loop has consumed. `advance()` moves it on by one global batch; `Job.steps()` calls it.
    So make the DataLoader's iterator after `attach()`::

        sampler = ResumableBatchSampler(len(dataset), 32, rank=rank, world_size=world_size)
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=4)
        job = ft.attach(model=model, optimizer=optimizer, sampler=sampler)
        for step, batch in zip(job.steps(10_000), loader): ...

    The batch size and the number of ranks may be others after a resume: the position is in samples.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        *,
        rank: int,
        world_size: int,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
    ) -> None:
        """length: samples in the dataset. batch_size: samples of one rank's batch.

        Raises ValueError for sizes below 1, a rank out of range, or, with `drop_last`, a dataset that does
        not fill one global batch.
        """
        if length < 1 or batch_size < 1 or not 0 <= rank < world_size:
            raise ValueError(f"cannot sample: length {length}, batch_size {batch_size}, rank {rank} of {world_size}")
        if drop_last and length < batch_size * world_size:
            raise ValueError(
                f"cannot sample: {length} samples do not fill a batch of {batch_size} on {world_size} ranks "
                "(with drop_last=False it is filled from the next epoch)"
            )
        self._fixed = {"length": length, "seed": seed, "shuffle": shuffle, "drop_last": drop_last}
        self._length, self._seed, self._shuffle, self._drop_last = length, seed, shuffle, drop_last
        self._batch_size, self._rank = batch_size, rank
        self._global_batch = batch_size * world_size
        self._position = _Position()
        self._read_ahead = False

    @property
    def consumed(self) -> int:
        """Samples consumed, over all ranks and epochs."""
        return self._position.consumed

    @property
    def epoch(self) -> int:
        """The epoch in which the next batch begins, from 0."""
        return self._start(self._position).epoch

    def advance(self) -> None:
        """One global batch has been consumed."""
        self._position = self._after(self._start(self._position))

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's batches from the position on, without end: lists of `batch_size` indices."""
        self._read_ahead = True
        position, order, epoch = self._position, torch.empty(0), -1
        while True:
            position = self._start(position)
            batch: list[int] = []
            at, begin = position.epoch, position.offset + self._rank * self._batch_size
            while len(batch) < self._batch_size:
                at, begin = at + begin // self._length, begin % self._length
                if at != epoch:
                    order, epoch = self._order(at), at
                part = order[begin : begin + self._batch_size - len(batch)].tolist()
                batch += part
                begin += len(part)
            yield batch
            position = self._after(position)

    def _order(self, epoch: int) -> Tensor:
        """The order of an epoch: `length` indices."""
        if not self._shuffle:
            return torch.arange(self._length)
        generator = torch.Generator().manual_seed((self._seed + epoch * _MIX) % 2**64)
        return torch.randperm(self._length, generator=generator)

    def _start(self, position: _Position) -> _Position:
        """Where the batch at `position` begins: the next epoch, when what is left of this one is dropped."""
        if self._drop_last and position.offset + self._global_batch > self._length:
            return replace(position, epoch=position.epoch + 1, offset=0)
        return position

    def _after(self, start: _Position) -> _Position:
        epochs, offset = divmod(start.offset + self._global_batch, self._length)
        return _Position(start.epoch + epochs, offset, start.consumed + self._global_batch)

    def state_dict(self) -> dict[str, Any]:
        """The position, and what it would mean nothing without."""
        position = self._position
        return {
            "epoch": position.epoch,
            "offset": position.offset,
            "consumed": position.consumed,
            **self._fixed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position.

        Raises ValueError when it is one in another order or dataset, or when an iterator has read ahead from
        where we were: its batches would be the wrong ones.
        """
        if self._read_ahead:
            raise ValueError(
                "cannot resume sampling: an iterator was made before attach() and has read ahead from the beginning; "
                "make the DataLoader's iterator after attach()"
            )
        for name, value in self._fixed.items():
            if state[name] != value:
                raise ValueError(f"cannot resume sampling: {name} is {value}, {state[name]} when it was saved")
        self._position = _Position(state["epoch"], state["offset"], state["consumed"])

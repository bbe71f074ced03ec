"""Samplers that know their position, in samples, and resume there without reading what came before.

A script makes one for its DataLoader and attaches it; the Job moves its position on as steps complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.utils.data import Sampler

from ftlaunch_contract.checkpoint import skipped_samples
from ftlaunch_hooks.data.sample_seeds import SeededBatch, leave_generators_alone
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.tensors.json_codec import StateError

_MIX = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: keeps the epochs of different seeds apart
_STREAM = 0xC2B2AE3D27D4EB4F  # another odd number: keeps data sets apart from epochs

Tail = Literal["drop", "carry", "keep"]

_BATCH = "global_batch"  # key of a saved position
_OTHER_BATCH = (
    "a step takes {now} samples now, {before} when it was saved: the data goes on at the exact sample, and steps go on"
    " at their number, so that what counts steps (a schedule, the number of steps to make) sees other amounts of data;"
    " a scheduler for which attach(anew=...) gives a word goes on at the same share of the data"
)


class PositionError(StateError, ValueError):
    """A saved position belongs to another order of samples, or is restored after batches were read."""


class SampleOrder:
    """The order of a data set's samples, epoch after epoch. The order depends on seed and epoch alone."""

    def __init__(self, length: int, seed: int, *, shuffle: bool, stream: int = 0) -> None:
        """Define the order of a data set of `length` samples.

        stream: a number that differs for data sets of one seed.
        """
        self.length = length
        self._seed = seed + stream * _STREAM
        self._shuffle = shuffle
        self._epoch = -1  # the epoch of `_order`
        self._order = torch.empty(0, device="cpu")

    def read(self, sample: int, count: int) -> list[int]:
        """Return the indices of `count` samples, beginning with number `sample`, counted over all epochs."""
        found: list[int] = []
        while len(found) < count:
            epoch, offset = divmod(sample + len(found), self.length)
            if epoch != self._epoch:
                self._epoch = epoch
                self._order = self._shuffled(epoch)
            found += self._order[offset : offset + count - len(found)].tolist()
        return found

    def _shuffled(self, epoch: int) -> Tensor:
        if not self._shuffle:
            return torch.arange(self.length, device="cpu")
        generator = torch.Generator("cpu").manual_seed((self._seed + epoch * _MIX) % 2**64)
        return torch.randperm(self.length, generator=generator, device="cpu")


class PositionedSampler(Sampler[list[int]]):
    """Yields batches of indices for one rank, from a position that only `advance()` moves; `Job.steps()` calls that.

    A DataLoader reads ahead; the position counts what the training loop has consumed. Workers of a DataLoader draw
    random numbers that depend on seed and sample, and making a DataLoader's iterator draws none (sample_seeds.py).
    """

    def __init__(self, batch_size: int, rank: int, world_size: int, fixed: Mapping[str, Any]) -> None:
        """Begin at the first sample.

        Args:
            batch_size: samples in one rank's batch.
            rank: this rank's number in the job.
            world_size: the number of the job's ranks.
            fixed: what must be the same for a saved position to be valid; `seed` is one of the names.

        Raises:
            ValueError: a size or the rank is impossible.
        """
        if batch_size < 1 or not 0 <= rank < world_size:
            raise ValueError(f"cannot sample: batch_size {batch_size}, rank {rank} of {world_size}")
        self._rank = rank
        self._world_size = world_size
        self.global_batch = batch_size * world_size
        """samples of a step, over all ranks"""
        self._fixed = dict(fixed)
        self.batches_differ = False
        """whether a step takes another number of samples than when the position was saved"""
        self._read_ahead = False
        self._skipped: skipped_samples.Spans = ()
        leave_generators_alone(PositionedSampler, _consumed)

    @property
    def consumed(self) -> int:
        """Samples consumed, over all ranks and epochs."""
        raise NotImplementedError

    def advance(self) -> None:
        """Move the position past one global batch, which has been consumed."""
        raise NotImplementedError

    def count_on(self, consumed: int) -> None:
        """Begin with the first sample, but count on from `consumed` samples of other data; no number is used twice.

        Raises:
            PositionError: batches were read already.
        """
        raise NotImplementedError

    def skip(self, spans: skipped_samples.Spans) -> None:
        """Pass over samples, by whole batches.

        A batch that begins in a span is not made; its samples count as consumed.

        Args:
            spans: [begin, end) in samples consumed over all ranks and epochs.

        Raises:
            PositionError: batches were read already.
        """
        self._expect_not_read()
        self._skipped = spans

    def _share(self, count: int) -> tuple[int, int]:
        """Return beginning and end of this rank's part of a global batch of `count` samples."""
        return count * self._rank // self._world_size, count * (self._rank + 1) // self._world_size

    def _batch(self, indices: list[int], first: int) -> SeededBatch:
        """Return this rank's batch. first: the number of its first sample, over all ranks and epochs."""
        return SeededBatch(indices, self._fixed["seed"], first)

    def _saved(self) -> dict[str, Any]:
        """Return the entries that belong to every saved position."""
        return {_BATCH: self.global_batch, **self._fixed}

    def _check(self, state: Mapping[str, Any]) -> None:
        """Check a saved position. Raises PositionError for one in another order, or if batches were read already."""
        self._expect_not_read()
        for name, value in self._fixed.items():
            if state[name] != value:
                raise PositionError(
                    f"cannot resume sampling: {name} is {value}, {state[name]} when it was saved; new data begins anew "
                    "where attach(anew=...) gives a word for it"
                )
        before = global_batch_of(state) or self.global_batch
        self.batches_differ = before != self.global_batch
        if self.batches_differ and not self._rank:
            say(_OTHER_BATCH.format(now=self.global_batch, before=before))

    def _expect_not_read(self) -> None:
        if self._read_ahead:
            raise PositionError(
                "cannot resume sampling: an iterator was made before attach() and has read ahead from the beginning; "
                "make the DataLoader's iterator after attach()"
            )


def global_batch_of(state: Mapping[str, Any]) -> int | None:
    """Return the samples of a step when a sampler's position was saved; None for one of an earlier version."""
    return state.get(_BATCH)


def _consumed(sampler: PositionedSampler) -> int:
    return sampler.consumed


@dataclass(frozen=True)
class _Position:
    """A place in the data."""

    epoch: int = 0
    offset: int = 0  # samples of this epoch's order that were consumed, over all ranks
    consumed: int = 0  # samples in all epochs, over all ranks


class _GlobalBatch(NamedTuple):
    """The samples of all ranks' batches of one step."""

    start: _Position
    size: int


class ResumableBatchSampler(PositionedSampler):
    """Batches of a data set's indices for one rank: those of an epoch in each pass, or of all epochs without end.

    A global batch is the next `batch_size * world_size` samples of the epoch's order, rank by rank, so every
    sample comes once per epoch over all ranks, however many they are. What is left at an epoch's end and does
    not fill a global batch (`tail`) is

    - "drop": not used in this epoch;
    - "carry": the beginning of a batch that goes on into the next epoch;
    - "keep": a smaller batch, shared out evenly between the ranks. Where there are fewer samples than ranks
      it is carried: no rank is left without. A mean over ranks weighs the samples of such a batch unequally.

    So make the DataLoader's iterator after `attach()`::

        sampler = ResumableBatchSampler(len(dataset), 32, rank=rank, world_size=world_size)
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=4)
        job = ft.attach(model=model, optimizer=optimizer, sampler=sampler)
        for epoch in job.epochs(90):
            for batch in job.batches(loader): ...

    A pass begins where the position is, and ends with the epoch. With `endless=True` it does not end::

        for step, batch in zip(job.steps(10_000), loader): ...

    `len()` is an epoch's length in batches. The batch size and the number of ranks may be others after a resume: the
    position is in samples.
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
        tail: Tail = "drop",
        endless: bool = False,
    ) -> None:
        """Begin at the first sample.

        Args:
            length: samples in the data set.
            batch_size: samples in one rank's batch.
            rank: this rank's number in the job.
            world_size: the number of the job's ranks.
            seed: seed of the shuffle.
            shuffle: whether each epoch has an order of its own.
            tail: what becomes of the samples left at an epoch's end.
            endless: whether a pass goes on through all epochs.

        Raises:
            ValueError: a size is below 1, the rank is out of range, the tail is unknown, or the data set does not fill
                one global batch although the tail is dropped.
        """
        fixed = {"length": length, "seed": seed, "shuffle": shuffle, "tail": tail}
        super().__init__(batch_size, rank=rank, world_size=world_size, fixed=fixed)
        if length < 1:
            raise ValueError(f"cannot sample: length {length}")
        if tail not in get_args(Tail):
            raise ValueError(f"cannot sample: tail is {tail!r}; allowed are {', '.join(map(repr, get_args(Tail)))}")
        if tail == "drop" and length < self.global_batch:
            raise ValueError(
                f"cannot sample: {length} samples do not fill a batch of {batch_size} on {world_size} ranks "
                "(with tail='carry' it is filled from the next epoch)"
            )
        self._order = SampleOrder(length, seed, shuffle=shuffle)
        self._tail = tail
        self._endless = endless
        self._position = _Position()

    @property
    def consumed(self) -> int:
        """Samples consumed, over all ranks and epochs."""
        return self._position.consumed

    @property
    def epoch(self) -> int:
        """The epoch in which the next batch begins, from 0."""
        return self._next(self._position).start.epoch

    def advance(self) -> None:
        """Move the position past one global batch, which has been consumed."""
        self._position = self._after(self._next(self._position))

    def count_on(self, consumed: int) -> None:
        """Begin with the first sample, but count on from `consumed` samples of other data. Raises PositionError."""
        self._expect_not_read()
        self._position = _Position(consumed=consumed)

    def __len__(self) -> int:
        """Return the number of batches that begin in the first epoch.

        The position does not change it, so a schedule may be computed from it. Skipped batches count. Where the tail is
        carried, another epoch may have one batch less.
        """
        batches, left = divmod(self._order.length, self.global_batch)
        return batches + (left > 0 and self._tail != "drop")

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's batches, lists of indices, from the position to the end of its epoch, or without end."""
        self._read_ahead = True
        position = self._position
        epoch = self.epoch
        while True:
            batch = self._next(position)
            start = batch.start
            if start.epoch != epoch and not self._endless:
                return
            begin, end = self._share(batch.size)
            indices = self._order.read(start.epoch * self._order.length + start.offset + begin, end - begin)
            yield self._batch(indices, start.consumed + begin)
            position = self._after(batch)

    def _next(self, position: _Position) -> _GlobalBatch:
        """Return the first batch from `position` on that is not skipped."""
        while skipped_samples.after(self._skipped, position.consumed) != position.consumed:
            position = self._after(self._following(position))
        return self._following(position)

    def _following(self, position: _Position) -> _GlobalBatch:
        """Return the first batch from `position` on, skipped or not."""
        left = self._order.length - position.offset
        if left >= self.global_batch:
            return _GlobalBatch(position, self.global_batch)
        if self._tail == "drop":
            return _GlobalBatch(replace(position, epoch=position.epoch + 1, offset=0), self.global_batch)
        if self._tail == "keep" and left >= self._world_size:
            return _GlobalBatch(position, left)
        return _GlobalBatch(position, self.global_batch)

    def _after(self, batch: _GlobalBatch) -> _Position:
        """Return the position after a batch."""
        epochs, offset = divmod(batch.start.offset + batch.size, self._order.length)
        return _Position(epoch=batch.start.epoch + epochs, offset=offset, consumed=batch.start.consumed + batch.size)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and what must be the same for the position to be valid."""
        position = self._position
        entries = {"epoch": position.epoch, "offset": position.offset, "consumed": position.consumed}
        return {**entries, **self._saved()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position.

        Raises:
            PositionError: the position belongs to another order or data set, or an iterator has read ahead from the
                present position, so that its batches would be wrong.
        """
        self._check(state)
        self._position = _Position(epoch=state["epoch"], offset=state["offset"], consumed=state["consumed"])

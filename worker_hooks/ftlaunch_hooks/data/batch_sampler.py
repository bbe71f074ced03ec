"""Samplers that know their position, in samples, and resume there without reading what came before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

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

_BATCH = "global_batch"
_OTHER_BATCH = (
    "a step takes {now} samples now, {before} when it was saved: the data goes on at the exact sample, and steps go on"
    " at their number, so that what counts steps (a schedule, the number of steps to make) sees other amounts of data;"
    " a scheduler for which attach(anew=...) gives a word goes on at the same share of the data"
)


class PositionError(StateError, ValueError):
    """A saved position is not one in this order of samples, or comes too late."""


class SampleOrder:
    """The order of a data set's samples, epoch after epoch: it depends on seed and epoch alone."""

    def __init__(self, length: int, seed: int, *, shuffle: bool, stream: int = 0) -> None:
        """length: samples in the data set. stream: tells data sets of one seed from each other."""
        self.length, self._seed, self._shuffle = length, seed + stream * _STREAM, shuffle
        self._epoch, self._order = -1, torch.empty(0, device="cpu")

    def read(self, sample: int, count: int) -> list[int]:
        """`count` indices, beginning with that of the `sample`-th sample of all epochs."""
        found: list[int] = []
        while len(found) < count:
            epoch, at = divmod(sample + len(found), self.length)
            if epoch != self._epoch:
                self._epoch, self._order = epoch, self._of(epoch)
            found += self._order[at : at + count - len(found)].tolist()
        return found

    def _of(self, epoch: int) -> Tensor:
        if not self._shuffle:
            return torch.arange(self.length, device="cpu")
        generator = torch.Generator("cpu").manual_seed((self._seed + epoch * _MIX) % 2**64)
        return torch.randperm(self.length, generator=generator, device="cpu")


class PositionedSampler(Sampler[list[int]]):
    """Batches of indices for one rank, from a position that only `advance()` moves; `Job.steps()` calls it.

    A DataLoader reads ahead; the position counts what the training loop has consumed. Workers of a DataLoader draw
    random numbers by seed and sample, and making a DataLoader's iterator draws none (sample_seeds.py).
    """

    def __init__(self, batch_size: int, rank: int, world_size: int, fixed: Mapping[str, Any]) -> None:
        """fixed: what must be the same for a position to be valid. Raises ValueError for impossible sizes."""
        if batch_size < 1 or not 0 <= rank < world_size:
            raise ValueError(f"cannot sample: batch_size {batch_size}, rank {rank} of {world_size}")
        self._rank, self._world_size = rank, world_size
        self.global_batch = batch_size * world_size
        """samples of a step, over all ranks"""
        self._fixed = dict(fixed)
        self.batches_differ = False
        """a step takes another number of samples than it took when the position was saved"""
        self._read_ahead = False
        self._skipped: skipped_samples.Spans = ()
        leave_generators_alone(PositionedSampler, _consumed)

    @property
    def consumed(self) -> int:
        """Samples consumed, over all ranks and epochs."""
        raise NotImplementedError

    def advance(self) -> None:
        """One global batch has been consumed."""
        raise NotImplementedError

    def count_on(self, consumed: int) -> None:
        """Begin with the first sample, behind `consumed` samples of other data: each number stays one sample's.

        Raises PositionError where batches were read already.
        """
        raise NotImplementedError

    def skip(self, spans: skipped_samples.Spans) -> None:
        """Pass over samples, by whole batches: [begin, end) of what is consumed over all ranks and epochs.

        A batch that begins in a span is not made; the samples count as consumed. Raises PositionError where batches
        were read already.
        """
        self._expect_not_read()
        self._skipped = spans

    def _share(self, count: int) -> tuple[int, int]:
        """Beginning and end of this rank's part of a global batch of `count` samples."""
        return count * self._rank // self._world_size, count * (self._rank + 1) // self._world_size

    def _batch(self, indices: list[int], first: int) -> SeededBatch:
        """This rank's batch; first: the number of its first sample, over all ranks and epochs."""
        return SeededBatch(indices, self._fixed["seed"], first)

    def _saved(self) -> dict[str, Any]:
        """What belongs to every position."""
        return {_BATCH: self.global_batch, **self._fixed}

    def _check(self, state: Mapping[str, Any]) -> None:
        """Raises PositionError when `state` is a position in another order, or batches were read already."""
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
    """Samples that a step took when a sampler's position was saved; None of earlier versions, which did not say."""
    return state.get(_BATCH)


def _consumed(sampler: PositionedSampler) -> int:
    return sampler.consumed


@dataclass(frozen=True)
class _Position:
    epoch: int = 0
    offset: int = 0  # samples of this epoch's order that were consumed, over all ranks
    consumed: int = 0  # samples in all epochs, over all ranks


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
        """length: samples in the data set. batch_size: samples of one rank's batch. endless: see the class.

        Raises ValueError for sizes below 1, a rank out of range, an unknown tail, or a data set that does not
        fill one global batch where the tail is dropped.
        """
        super().__init__(
            batch_size, rank, world_size, {"length": length, "seed": seed, "shuffle": shuffle, "tail": tail}
        )
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
        self._tail, self._endless = tail, endless
        self._position = _Position()

    @property
    def consumed(self) -> int:
        """Samples consumed, over all ranks and epochs."""
        return self._position.consumed

    @property
    def epoch(self) -> int:
        """The epoch in which the next batch begins, from 0."""
        return self._next(self._position)[0].epoch

    def advance(self) -> None:
        """One global batch has been consumed."""
        self._position = self._after(*self._next(self._position))

    def count_on(self, consumed: int) -> None:
        """See PositionedSampler."""
        self._expect_not_read()
        self._position = _Position(consumed=consumed)

    def __len__(self) -> int:
        """Batches that begin in the first epoch. The same at every position: a schedule computed from it stays.

        What is skipped counts; where the tail is carried, another epoch may have one batch less.
        """
        batches, left = divmod(self._order.length, self.global_batch)
        return batches + (left > 0 and self._tail != "drop")

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's batches, lists of indices, from the position to the end of its epoch, or without end."""
        self._read_ahead = True
        position = self._position
        epoch = self.epoch
        while True:
            start, count = self._next(position)
            if start.epoch != epoch and not self._endless:
                return
            begin, end = self._share(count)
            indices = self._order.read(start.epoch * self._order.length + start.offset + begin, end - begin)
            yield self._batch(indices, start.consumed + begin)
            position = self._after(start, count)

    def _next(self, position: _Position) -> tuple[_Position, int]:
        """Where the next batch begins that is not skipped, and how many samples it has over all ranks."""
        while skipped_samples.after(self._skipped, position.consumed) != position.consumed:
            position = self._after(*self._following(position))
        return self._following(position)

    def _following(self, position: _Position) -> tuple[_Position, int]:
        """The same of the batch at `position`, skipped or not."""
        left = self._order.length - position.offset
        if left >= self.global_batch:
            return position, self.global_batch
        if self._tail == "drop":
            return replace(position, epoch=position.epoch + 1, offset=0), self.global_batch
        if self._tail == "keep" and left >= self._world_size:
            return position, left
        return position, self.global_batch

    def _after(self, start: _Position, count: int) -> _Position:
        epochs, offset = divmod(start.offset + count, self._order.length)
        return _Position(start.epoch + epochs, offset, start.consumed + count)

    def state_dict(self) -> dict[str, Any]:
        """The position, and what must be the same for it to be valid."""
        position = self._position
        at = {"epoch": position.epoch, "offset": position.offset, "consumed": position.consumed}
        return {**at, **self._saved()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position.

        Raises PositionError when it is one in another order or data set, or when an iterator has read ahead from
        where we were: its batches would be the wrong ones.
        """
        self._check(state)
        self._position = _Position(state["epoch"], state["offset"], state["consumed"])

"""A sampler that draws from several data sets by ratio, and resumes at its position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from ftlaunch_contract.checkpoint import skipped_samples
from ftlaunch_hooks.data.batch_sampler import PositionedSampler, SampleOrder


class ResumableMixSampler(PositionedSampler):
    """Yields batches for one rank from several data sets, mixed by ratio, endlessly; indices are a ConcatDataset's.

    The mix is a cycle of `sum(ratio)` samples in which each data set comes as often as its ratio says, spread evenly.
    The
    cycle repeats, so the ratio is exact. Each data set has epochs and an order of its own: all its samples come once
    before
    any comes again, over all ranks, however many there are. The position is the samples consumed of each data set::

        dataset = ConcatDataset([code, books, chat])
        sampler = ResumableMixSampler([len(d) for d in dataset.datasets], [7, 2, 1], 32, rank=r, world_size=w)
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=4)
        job = ft.attach(model=model, optimizer=optimizer, sampler=sampler)

    The ratio, the batch size and the number of ranks may change with a resume; with another ratio each data set goes on
    where it was. There is no tail: what does not fill a batch is carried. There is no `len()`: each data set has epochs
    of its own.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        ratio: Sequence[int],
        batch_size: int,
        *,
        rank: int,
        world_size: int,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        """Begin at the first sample of each data set.

        Args:
            lengths: samples in each data set.
            ratio: whole numbers, one for each data set: [7, 2, 1] is 70, 20, 10 %.
            batch_size: samples in one rank's batch.
            rank: this rank's number in the job.
            world_size: the number of the job's ranks.
            seed: seed of the shuffles.
            shuffle: whether each epoch has an order of its own.

        Raises:
            ValueError: a size or share is below 1, or the rank is out of range.
        """
        fixed = {"lengths": list(lengths), "seed": seed, "shuffle": shuffle}
        super().__init__(batch_size, rank=rank, world_size=world_size, fixed=fixed)
        has_one_share_each = bool(lengths) and len(lengths) == len(ratio)
        if not has_one_share_each or min(*lengths, *ratio) < 1 or any(share != int(share) for share in ratio):
            raise ValueError(
                f"cannot mix: lengths {list(lengths)}, ratio {list(ratio)}; each is a whole number of 1 or more, "
                "and there is one ratio a data set"
            )
        self._orders = [
            SampleOrder(length, seed, shuffle=shuffle, stream=number) for number, length in enumerate(lengths, 1)
        ]
        self._first = list(accumulate(lengths[:-1], initial=0))  # index of each data set's first sample
        self._ratio = [int(share) for share in ratio]
        self._cycle = spread(self._ratio)
        # place in the cycle -> how many samples of each data set come before that place
        self._before = [
            [self._cycle[:place].count(number) for number in range(len(ratio))] for place in range(sum(ratio))
        ]
        self._base = [0] * len(ratio)  # samples of each data set that were consumed when the first cycle began
        self._done = 0  # samples consumed since then
        self._earlier = 0  # samples of other data, given to count_on

    @property
    def consumed(self) -> int:
        """Samples consumed, over all ranks, data sets and epochs."""
        return self._counted + self._done

    @property
    def _counted(self) -> int:
        return self._earlier + sum(self._base)

    @property
    def consumed_of(self) -> list[int]:
        """Samples consumed of each data set, over all ranks and epochs."""
        return self._consumed(self._done)

    def advance(self) -> None:
        """Move the position past one global batch, which has been consumed."""
        self._done = self._next(self._done) + self.global_batch

    def count_on(self, consumed: int) -> None:
        """Begin with the first sample, but count on from `consumed` samples of other data. Raises PositionError."""
        self._expect_not_read()
        self._base = [0] * len(self._base)
        self._done = 0
        self._earlier = consumed

    def _next(self, done: int) -> int:
        """Return where the first batch from `done` on begins that is not skipped."""
        before = self._counted
        while skipped_samples.after(self._skipped, before + done) != before + done:
            done += self.global_batch
        return done

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's batches from the position on, without end: lists of `batch_size` indices."""
        self._read_ahead = True
        done = self._done
        while True:
            done = self._next(done)
            begin, end = (done + part for part in self._share(self.global_batch))
            parts = [
                iter(order.read(first, last - first))
                for order, first, last in zip(self._orders, self._consumed(begin), self._consumed(end), strict=True)
            ]
            numbers = [self._cycle[sample % len(self._cycle)] for sample in range(begin, end)]
            indices = [self._first[number] + next(parts[number]) for number in numbers]
            yield self._batch(indices, self._counted + begin)
            done += self.global_batch

    def _consumed(self, done: int) -> list[int]:
        """Return the samples consumed of each data set, `done` samples after the first cycle began."""
        cycles, place = divmod(done, len(self._cycle))
        return [
            base + cycles * share + before
            for base, share, before in zip(self._base, self._ratio, self._before[place], strict=True)
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and what must be the same for the position to be valid."""
        return {
            "consumed_of": self.consumed_of,
            "place_in_cycle": self._done % len(self._cycle),
            "ratio": self._ratio,
            "earlier": self._earlier,
            **self._saved(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position. If the ratio has changed, a new cycle begins there.

        Raises:
            PositionError: the position belongs to other data sets or another order, or an iterator has read ahead from
                the present position, so that its batches would be wrong.
        """
        self._check(state)
        place = state["place_in_cycle"] if state["ratio"] == self._ratio else 0
        self._base = [
            consumed - before for consumed, before in zip(state["consumed_of"], self._before[place], strict=True)
        ]
        self._done = place
        self._earlier = state.get("earlier", 0)  # earlier versions did not save this entry


def spread(ratio: Sequence[int]) -> list[int]:
    """Return a cycle in which number i comes `ratio[i]` times, as evenly as possible: [2, 1] gives [0, 1, 0].

    This is nginx's smooth weighted round-robin: in each turn every number gains its weight; the number with the most
    is chosen, and loses the sum of all weights.
    """
    cycle = []
    credit = [0] * len(ratio)
    for _ in range(sum(ratio)):
        credit = [balance + share for balance, share in zip(credit, ratio, strict=True)]
        chosen = credit.index(max(credit))
        credit[chosen] -= sum(ratio)
        cycle.append(chosen)
    return cycle

"""The newest batch of a loader: by it a run that was brought back to a place in its data sees whether it is the same.

A data set that draws random numbers which nobody saves (from a generator in a list, say) makes other batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from ftlaunch_hooks.passes.batch_sample import same, sample_of
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.state.random_numbers import shared as random_numbers

OTHER_BATCHES = (
    "the batches with which this run goes on are not those that it had here before: it is not exact from here on; the"
    " data set has other rows, or another order of them (a shuffle without a seed), or draws random numbers that cannot"
    " be put back"
)


class NewestBatch:
    """Hands on the batches of iterators, and knows the newest one."""

    def __init__(self) -> None:
        self._batch: list[Any] = []

    def of(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same batches. An iterator is not asked for itself: Lightning's begins anew then."""
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            self._batch = [batch]
            yield batch

    def sample(self) -> Tensor:
        """A few values of it."""
        return sample_of(self._batch)

    def compare(self, sample: Tensor) -> None:
        """Say so where it is not the batch of which `sample` told."""
        if not same(sample, self.sample()):
            say(OTHER_BATCHES)


class NewestFetch(NewestBatch):
    """Of a loader from which training and data draw by turns: knows the global generators before the newest batch, too.

    They are read where the first batch of a pass has drawn from them, for reading costs 10 us.
    """

    def __init__(self) -> None:
        super().__init__()
        self._at: random_numbers.Raw | None = None

    def of(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same batches."""
        before: random_numbers.Raw | None = random_numbers.read_raw()
        for number, batch in enumerate(super().of(batches)):
            if number == 0 and before is not None and random_numbers.are_alike(before, random_numbers.read_raw()):
                before = None
            self._at = before
            yield batch
            before = None if self._at is None else random_numbers.read_raw()

    def state(self) -> dict[str, Any]:
        """At a boundary."""
        return {"sample": self.sample(), "at": None if self._at is None else random_numbers.to_save(self._at)}

    def fetch_again(self, fetch: Callable[[], Any], saved: dict[str, Any]) -> Any:
        """What `fetch` gives, which is to be the batch of which `state` has told."""
        if saved["at"] is not None:
            random_numbers.put_back({**saved["at"], "own": []})
        before = random_numbers.read_raw()
        batch = fetch()
        if saved["at"] is not None or random_numbers.are_alike(before, random_numbers.read_raw()):
            self.compare(saved["sample"])
        return batch

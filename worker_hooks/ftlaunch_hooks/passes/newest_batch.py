"""The newest batch of a loader, which shows a resumed run whether its data goes on with the same batches.

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
    """Hands on the batches of iterators, and remembers the newest one."""

    def __init__(self) -> None:
        self._batch: list[Any] = []

    def of(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of an iterator.

        `iter()` is not called on it, because Lightning's iterators then begin anew.
        """
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            self._batch = [batch]
            yield batch

    def sample(self) -> Tensor:
        """Return a few values of the newest batch."""
        return sample_of(self._batch)

    def compare(self, sample: Tensor) -> None:
        """Warn if the newest batch is not the one from which `sample` was taken."""
        if not same(sample, self.sample()):
            say(OTHER_BATCHES)


class NewestFetch(NewestBatch):
    """The newest batch of a loader from which training and data draw by turns, with the generators' states before it.

    The global generators are read only if the first batch of a pass has drawn from them, because reading costs 10 us.
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: random_numbers.Raw | None = None  # the global generators before the newest batch was made

    def of(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of an iterator, and remember the generators' states before the newest one."""
        before: random_numbers.Raw | None = random_numbers.read_raw()
        for number, batch in enumerate(super().of(batches)):
            if number == 0 and before is not None and random_numbers.are_alike(before, random_numbers.read_raw()):
                before = None
            self._before = before
            yield batch
            before = None if self._before is None else random_numbers.read_raw()

    def state(self) -> dict[str, Any]:
        """Return what `refetch` needs, at a step boundary."""
        return {"sample": self.sample(), "at": None if self._before is None else random_numbers.to_save(self._before)}

    def refetch(self, fetch: Callable[[], Any], saved: dict[str, Any]) -> Any:
        """Return the result of `fetch`, which should be the batch that was the newest one when `saved` was returned."""
        if saved["at"] is not None:
            random_numbers.put_back({**saved["at"], "own": []})
        before = random_numbers.read_raw()
        batch = fetch()
        if saved["at"] is not None or random_numbers.are_alike(before, random_numbers.read_raw()):
            self.compare(saved["sample"])
        return batch

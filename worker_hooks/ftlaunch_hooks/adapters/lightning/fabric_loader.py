"""Follow the passes over a loader of Fabric, and bring the loader back to a batch.

Fabric's loader makes its DataLoader's iterator when the first batch of a pass is asked for, sets the sampler's epoch
to the number of passes that it has counted, and reads no batch ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ftlaunch_hooks.adapters.refusal import check_members, refuse
from ftlaunch_hooks.observe.unsaved.epoch_loops import EpochLoops
from ftlaunch_hooks.passes.draws import PERSISTENT, Draws
from ftlaunch_hooks.passes.newest_batch import NewestFetch
from ftlaunch_hooks.state.random_numbers import shared as random_numbers

_NONE = object()  # in the place of a batch where there is no more
_OF_LOADER = "_dataloader _num_iter_calls"
_AHEAD = (
    "the workers of a DataLoader read ahead, and its sampler draws from the global random numbers as they do: those are"
    " drawn again after a resume, and the run is not exact"
)
_AT_ONCE = (
    "a pass over a loader begins while another one over the same loader is under way: only the place of the newer one"
    " is saved, and a resumed run is not exact where the other one goes on"
)


class FabricLoader:
    """Replaces the DataLoader within a loader of Fabric, and counts the batches of each pass."""

    def __init__(self, loader: Any, epochs: EpochLoops, arrived: Callable[[], int]) -> None:
        """Replace the DataLoader.

        Args:
            loader: Fabric's loader. It gets an attribute `iteration`, the number of its present pass, or between two
                passes of the next one.
            epochs: is told of each pass.
            arrived: called before the batch that follows the boundary is fetched after a resume; returns the
                boundary's step.

        Raises:
            AttachError: this version of Lightning has another loader.
        """
        check_members(loader, _OF_LOADER, "Lightning 2.6")
        self._loader = loader
        self._epochs = epochs
        self._arrived = arrived
        self.inner = loader._dataloader
        self._draws = Draws(self.inner)
        self._newest = NewestFetch()
        self._pass: Iterator[Any] | None = None  # the pass that is under way
        self._had = 0  # number of batches that were handed out in this pass
        self._made_at: random_numbers.State = {}  # the generators before the pass's iterator was made
        self._saved: dict[str, Any] | None = None  # the place to which the next pass has to go
        loader._dataloader = self
        loader.iteration = loader._num_iter_calls

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "inner"), name)

    def state(self) -> dict[str, Any]:
        """Return the place at a boundary. Until a pass has resumed at the saved place, this is the saved place."""
        if self._saved is not None:
            return self._saved
        within = None
        if self._pass is not None:
            within = {"had": self._had, "made_at": self._made_at, "newest": self._newest.state()}
        return {"iteration": self._loader.iteration, "within": within, **self._draws.own()}

    def go_on_from(self, saved: dict[str, Any]) -> None:
        """Have the next pass begin at the batch that follows the boundary of the state `saved`."""
        self._loader.iteration = self._loader._num_iter_calls = saved["iteration"]
        self._saved = saved if saved["within"] is not None else None
        self._draws.put_back_seeds(saved)
        if self._saved is None:  # otherwise __iter__ restores them as the pass began: some may have been made later
            self._draws.put_back_own(saved)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of a pass. Fabric calls this when the pass's first batch is asked for."""
        saved = self._saved
        self._saved = None
        if self._pass is not None:
            self._epochs.say_once(_AT_ONCE)
        self._loader.iteration = self._loader._num_iter_calls - 1  # Fabric has counted this one
        self._epochs.begins(self._loader.iteration)
        if saved is not None:
            self._draws.put_back(saved["within"]["made_at"])
        self._had = 0
        self._made_at = self._draws.read()
        batches = self._pass = self._newest.of(iter(self.inner))
        try:
            step = self._go_to(batches, saved) if saved is not None else 0
            passed = self._had
            for batch in batches:
                if saved is not None and self._had == passed:
                    self._epochs.goes_on(passed)
                self._had += 1
                yield batch
            if saved is not None and self._had == passed:
                self._epochs.is_empty(step)
        finally:
            if self._pass is batches:
                self._pass = None
                self._loader.iteration = self._loader._num_iter_calls

    def _go_to(self, batches: Iterator[Any], saved: dict[str, Any]) -> int:
        """Read and drop the batches before the saved place. Return the step of the boundary. Raises AttachError."""
        if saved["iteration"] and getattr(self.inner, "persistent_workers", False):
            self._epochs.say_once(PERSISTENT)
        before = random_numbers.read_raw()
        for left in reversed(range(had := saved["within"]["had"])):
            before = random_numbers.read_raw()
            if self._read(batches, saved["within"]["newest"] if left == 0 else None) is _NONE:
                refuse(f"cannot resume: {had} batches of a pass were had, and the loader has {self._had} now")
            self._had += 1
        if self._had and self.inner.num_workers and not random_numbers.are_alike(before, random_numbers.read_raw()):
            self._epochs.say_once(_AHEAD)
        self._draws.put_back_own(saved)
        return self._arrived()

    def _read(self, batches: Iterator[Any], newest: dict[str, Any] | None) -> Any:
        """Return the next batch, or _NONE.

        Args:
            batches: the pass.
            newest: the saved state of the newest fetch, if the batch that comes now is that one.
        """
        if newest is None:
            return next(batches, _NONE)
        return self._newest.refetch(lambda: next(batches, _NONE), newest)

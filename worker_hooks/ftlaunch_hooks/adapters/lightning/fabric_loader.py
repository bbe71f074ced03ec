"""A loader of Fabric's: how far its pass is, and the way back to a batch.

Fabric's loader makes its DataLoader's iterator when the first batch of a pass is asked for, sets the sampler's epoch
from the passes that it counts, and reads no batch ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ftlaunch_hooks.adapters.refusal import check_members, refuse
from ftlaunch_hooks.observe.unsaved.epoch_loops import EpochLoops
from ftlaunch_hooks.passes.draws import PERSISTENT, Draws
from ftlaunch_hooks.passes.newest_batch import NewestFetch
from ftlaunch_hooks.state.random_numbers import shared as random_numbers

_NONE = object()  # no batch is
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
    """Stands in a Fabric loader for the DataLoader within it, and counts the batches of each pass."""

    def __init__(self, loader: Any, epochs: EpochLoops, arrived: Callable[[], int]) -> None:
        """loader: gets an attribute `iteration`, the number of the pass that it is in, or else of the next one.

        epochs: is told of each pass. arrived: called where the batch behind the boundary is next; returns its step.
        Raises AttachError for another version's loader.
        """
        check_members(loader, _OF_LOADER, "Lightning 2.6")
        self._loader, self._epochs, self._arrived = loader, epochs, arrived
        self.inner = loader._dataloader
        self._draws, self._newest = Draws(self.inner), NewestFetch()
        self._pass: Iterator[Any] | None = None  # the one that is under way
        self._had = 0  # batches of this pass
        self._made_at: random_numbers.State = {}
        self._saved: dict[str, Any] | None = None
        loader._dataloader, loader.iteration = self, loader._num_iter_calls

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "inner"), name)

    def state(self) -> dict[str, Any]:
        """At a boundary; until a pass goes on from where the loader was, that is still where it is."""
        if self._saved is not None:
            return self._saved
        within = None
        if self._pass is not None:
            within = {"had": self._had, "made_at": self._made_at, "newest": self._newest.state()}
        return {"iteration": self._loader.iteration, "within": within, **self._draws.own()}

    def go_on_from(self, saved: dict[str, Any]) -> None:
        """The next pass begins at the batch that the boundary was before."""
        self._loader.iteration = self._loader._num_iter_calls = saved["iteration"]
        self._saved = saved if saved["within"] is not None else None
        self._draws.put_back_seeds(saved)
        if self._saved is None:  # else the pass begins as it had begun: some may not have been made then
            self._draws.put_back_own(saved)

    def __iter__(self) -> Iterator[Any]:
        """A pass, as Fabric asks for it at its first batch."""
        saved, self._saved = self._saved, None
        if self._pass is not None:
            self._epochs.say_once(_AT_ONCE)
        self._loader.iteration = self._loader._num_iter_calls - 1  # Fabric has counted this one
        self._epochs.begins(self._loader.iteration)
        if saved is not None:
            self._draws.put_back(saved["within"]["made_at"])
        self._had, self._made_at = 0, self._draws.read()
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
        """Read the batches that were had, and pass over them; returns the step of the boundary."""
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
        """The next batch, or _NONE. newest: what was said of the batch that comes now, if anything was."""
        if newest is None:
            return next(batches, _NONE)
        return self._newest.fetch_again(lambda: next(batches, _NONE), newest)

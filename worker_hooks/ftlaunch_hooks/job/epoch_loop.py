"""The loops that people write: `for epoch in job.epochs(90):` and in it `for batch in job.batches(loader):`.

Each batch is a step. A step is complete when the next batch is asked for. The step of the last batch of a pass stays
open until the body of the epoch has ended, with what stands in it behind the loop over batches: a run that was killed
there goes on at the step before, makes the last batch again, and all that follows it.

What stands in the body before its batches runs again as the job resumes within the epoch. What it then changes in
attached objects is undone: they had been saved behind it.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections import deque
from collections.abc import Generator, Iterator
from types import FrameType
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from ftlaunch_hooks.data.sample_seeds import mixed
from ftlaunch_hooks.job.restore import AttachError
from ftlaunch_hooks.observe.reachable.kinds import is_library
from ftlaunch_hooks.observe.unsaved.epoch_loops import EpochLoops
from ftlaunch_hooks.passes import enumerations
from ftlaunch_hooks.passes.kept_loader import NO_BATCH, KeptLoader, LoaderPass, attributes_of
from ftlaunch_hooks.passes.sampler_state import Attributes
from ftlaunch_hooks.state.random_numbers import shared

_BLIND = (
    "the script's loop over epochs is not over job.epochs(), and does not ask for job.step: after a resume it begins at"
    " its first epoch, and makes more epochs than an undisturbed run; write `for epoch in job.epochs(number):`"
)
_BETWEEN = (
    "the body of an epoch goes through job.batches() a second time: where the job resumes in the second pass, what"
    " stands before that in the body runs again, and the run is not exact where that changes anything; give each pass"
    " an epoch of its own"
)


class Steps(Protocol):
    """What the loops need of the Job."""

    step: int

    def restore_rng(self) -> None:
        """See Job."""

    def _enter_epochs(self) -> None:
        """The first step is to be made, or gone on with: the random numbers are put back."""

    def _go_on_in_loop(self) -> None:
        """A pass begins."""

    def _undo_head(self) -> None:
        """The body of the epoch has run again up to the pass in which the job resumes: undo what that has changed."""

    def _begin_pass(self) -> None:
        """A pass is brought to its next batch: gradients, and variables of the function around it, are put back."""

    def _pause_loop(self) -> None:
        """The script has left a loop, and may end: it is to say so."""

    def _end_epochs(self) -> None:
        """All epochs are made: the last step is saved, and the training is over."""

    def _cross(self) -> None:
        """A step is complete, and another one follows."""

    def _complete(self, *, last: bool) -> None:
        """A step is complete. last: none follows."""

    def _batch_fetched(self, batch: Any) -> None:
        """A step begins with this batch."""

    def _read_generators(self) -> dict[str, Any]:
        """Return where all generators are, as it may be saved."""

    def _put_back_generators(self, state: dict[str, Any]) -> None:
        """Put all generators where `_read_generators` has found them."""

    def _keep_elsewhere(self, target: object) -> None:
        """The loops save an object that is not attached: nobody is to say that it is not saved."""

    def _moves(self, sampler: object) -> bool:
        """Whether an attached sampler is moved on with each step."""


class EpochLoop:
    """Where the script is in its epochs, and in the batches of each."""

    def __init__(self, job: Steps, saved: dict[str, Any] | None, rank: int, world_size: int) -> None:
        """saved: what `state` had returned where the job resumes. Raises AttachError for another number of ranks."""
        self._job, self._rank, self._world_size = job, rank, world_size
        self._speaks = EpochLoops(speaks=rank == 0)
        self._loaders: dict[int, KeptLoader] = {}  # by id of the loader, in the order of their passes
        self._epoch = self._passes = 0
        self._calls = 0  # passes of this epoch's body that count steps
        self._epoch_at: dict[str, Any] | None = None  # all generators as the epoch began
        self._is_used = self._has_entered = self._in_epochs = False
        self._open: list[LoaderPass] = []  # the pass that counts steps, and those beside it
        self._beside: deque[dict[str, Any]] = deque()  # passes beside that one, which are to go on where they were
        self._step_is_open = False
        self._counted: set[int] = set()  # ids of each enumerate() around the newest batch that was given its count
        self._alive: dict[int, Attributes] = {}  # by id, of loaders that there are as a job goes on: their samplers'
        self._resumed = saved
        # What loaders drew from beside the process's generators, where the job resumes between two passes: one that the
        # body makes itself begins with what the body gives it.
        self._own_before: list[Any] = saved["own"] if saved is not None and not saved["open"] else []
        if saved is not None and saved["ranks"] != world_size:
            raise AttachError(
                f"cannot resume on {world_size} ranks what {saved['ranks']} have saved: the passes over their loaders"
                f" are those of {saved['ranks']} ranks; start with {saved['ranks']}, or with --fresh"
            )

    def state(self) -> dict[str, Any] | None:
        """Return where the loops are, at a boundary; None where the script has none of them.

        Until a pass has gone on from where it was, that is still where it is.
        """
        if self._resumed is not None:
            return self._resumed
        if not self._is_used:
            return None
        return {
            "ranks": self._world_size,
            "epoch": self._epoch,
            "epoch_at": self._epoch_at,
            "calls": self._calls,
            "passes": self._passes,
            "open": [one.state() for one in self._open],
            "own": [kept.between_passes() for kept in self._loaders.values()],
        }

    def makes_again(self) -> bool:
        """Return whether what the script does now is made again in full where a job resumes behind it or within.

        So it is in the body of an epoch, but within a pass that counts steps.
        """
        return self._in_epochs and not self._open

    # --- epochs -------------------------------------------------------------------------------------------------

    def epochs(self, total: int) -> Generator[int]:
        """Yield the number of each epoch that is still to be made, or gone on with, up to `total`."""
        job = self._job
        self._enter()
        self._in_epochs = True
        if self._resumed is not None:
            self._epoch = self._resumed["epoch"]
        try:
            while self._epoch < total:
                self._begin_epoch()
                yield self._epoch
                self._end_epoch(last=self._epoch + 1 == total)
        finally:
            self._in_epochs = self._has_entered = False
            job._pause_loop()
        job._end_epochs()

    def _enter(self) -> None:
        """The first step is to be made, or gone on with."""
        if self._has_entered:
            return
        if self._resumed is not None:
            # isinstance() would ask proxies for their class, which runs code of theirs
            loaders = [one for one in gc.get_objects() if issubclass(type(one), DataLoader)]
            self._alive = {id(one): attributes_of(one) for one in loaders}
        self._job._enter_epochs()
        self._is_used = self._has_entered = True

    def _begin_epoch(self) -> None:
        """Begin the body with the random numbers with which it had begun."""
        self._calls = 0
        if self._resumed is not None and self._resumed["calls"]:
            self._epoch_at = self._resumed["epoch_at"]
            self._job._put_back_generators(self._resumed["epoch_at"])
        else:
            self._epoch_at = self._job._read_generators()

    def _end_epoch(self, *, last: bool) -> None:
        """The body has run to its end: the step of its last batch is complete."""
        if self._resumed is not None and self._resumed["calls"]:
            if self._calls == self._resumed["calls"] and not self._resumed["open"]:
                raise AttachError(
                    f"cannot resume: epoch {self._epoch} was left behind its last batch, by `break` and job.finish(),"
                    " and what stands there in its body has run before; leave the loop there again, and another time"
                    " let it end by the number given to job.epochs(), or give --fresh to start over"
                )
            raise AttachError(
                f"cannot resume: the job was in pass {self._resumed['calls']} over job.batches() in epoch"
                f" {self._epoch}, which has now asked for {self._calls}; start it with the script that it had, or give"
                " --fresh to start over"
            )
        is_open, self._step_is_open = self._step_is_open, False
        self._open.clear()
        self._epoch += 1
        self._calls, self._epoch_at = 0, None
        if is_open:
            self._job._complete(last=last)
        self._forget_loaders(goes_on=False)

    def finish(self) -> None:
        """The script says that its training is over, behind loops that were left early, or have no job.epochs()."""
        if self._step_is_open and not self._in_epochs and not self._open:
            self._step_is_open = False
            self._job._complete(last=True)

    # --- batches ------------------------------------------------------------------------------------------------

    def batches(self, loader: DataLoader[Any]) -> Batches:
        """Return the batches of a loader, each of which is a step."""
        if not isinstance(loader, DataLoader) or hasattr(loader, "base_dataloader"):
            raise AttachError(
                f"cannot take batches from a {type(loader).__name__}: job.batches() takes a DataLoader of torch's; take"
                " the batches of anything else by the number of the step, in a loop over job.steps()"
            )
        return Batches(self, loader)

    def go_through(self, loader: DataLoader[Any], iterator: BatchIterator) -> Iterator[Any]:
        """Yield the batches of a pass: of one that counts steps, or beside such a one. iterator: what asks for them."""
        return self._go_beside(loader, iterator) if self._open else self._lead(loader, iterator)

    def _lead(self, loader: DataLoader[Any], iterator: BatchIterator) -> Iterator[Any]:
        self._enter()
        if self._step_is_open:
            self._step_is_open = False
            self._job._complete(last=False)
        self._calls += 1
        if not self._in_epochs:
            self._forget_loaders(goes_on=self._resumed is not None)
        kept = self._keep(loader)
        if self._resumed is not None and self._in_epochs and self._calls <= _made_passes(self._resumed):
            return
        mine = self._begin_pass(kept, iterator)
        try:
            while (batch := mine.fetch()) is not NO_BATCH:
                self._job._batch_fetched(batch)
                self._step_is_open = True
                yield batch
                if self._open[:1] != [mine]:
                    raise AttachError(
                        "cannot go on with a pass over job.batches(): the body of its epoch has ended, and its last"
                        " step is complete; begin each pass in the epoch that it belongs to"
                    )
                if not mine.has_more():
                    break
                self._step_is_open = False
                self._job._cross()
        finally:
            if self._open[:1] == [mine]:
                self._open = []
            if not self._in_epochs:
                self._job._pause_loop()

    def _begin_pass(self, kept: KeptLoader, iterator: BatchIterator) -> LoaderPass:
        """Begin a pass, or bring it back to the batch behind the boundary from which the job resumed."""
        job, before, self._resumed = self._job, self._resumed, None
        self._counted = set()
        job._go_on_in_loop()
        if before is not None and (before["open"] or before["calls"]):
            job._undo_head()
        if before is None or not before["open"]:
            if before is not None:  # the boundary lies before this pass
                self._passes = before["passes"]
                if before["calls"]:
                    job.restore_rng()
            self._say_of_loops()
            self._passes += 1
            self._open = [kept.begin(self._seed(kept.loader), None)]
        else:
            self._passes = before["passes"]
            self._beside = deque(before["open"][1:])
            mine = kept.begin(0, before["open"][0])
            job.restore_rng()  # the batch behind the boundary draws what it would have drawn
            self._open = [mine]
            self._go_on_counting(iterator, mine.had)
        job._begin_pass()
        return self._open[0]

    def _go_beside(self, loader: DataLoader[Any], iterator: BatchIterator) -> Iterator[Any]:
        kept = self._keep(loader)
        if self._beside:
            outside = shared.read_raw()
            mine = kept.begin(0, self._beside.popleft())
            shared.put_back_raw(outside)
            self._go_on_counting(iterator, mine.had)
        else:
            self._passes += 1
            mine = kept.begin(self._seed(loader), None)
        self._open.append(mine)
        try:
            while (batch := mine.fetch()) is not NO_BATCH:
                yield batch
        finally:
            if mine in self._open:
                self._open.remove(mine)

    def _keep(self, loader: DataLoader[Any]) -> KeptLoader:
        if id(loader) in self._loaders:
            return self._loaders[id(loader)]
        kept = KeptLoader(loader, self._rank)
        if kept.is_positioned and not self._job._moves(kept.sampler):
            raise AttachError(
                f"cannot take batches by a {type(kept.sampler).__name__} that is not attached: it keeps its position"
                " itself; attach it, as in attach(model=model, sampler=sampler)"
            )
        number = len(self._loaders)
        if number < len(self._own_before) and id(loader) in self._alive:
            kept.begin_from(self._own_before[number], self._alive[id(loader)])
        if kept.has_place:
            self._job._keep_elsewhere(kept.loader.dataset)
        self._loaders[id(loader)] = kept
        return kept

    def _forget_loaders(self, *, goes_on: bool) -> None:
        """The body of an epoch has ended: the next one may make its loaders itself. goes_on: it is the first one."""
        self._loaders.clear()
        if not goes_on:
            self._own_before = []

    def _seed(self, loader: DataLoader[Any]) -> int:
        """Return the seed of a pass that begins: another one for each."""
        generator = torch.default_generator if loader.generator is None else loader.generator
        return mixed(generator.initial_seed(), self._passes)

    # --- what the script's loops are like -----------------------------------------------------------------------

    def _say_of_loops(self) -> None:
        """A pass begins: say what of the loops around it a resume will not bring back."""
        if self._in_epochs and self._calls > 1:
            self._speaks.say_once(_BETWEEN)
        if not self._in_epochs and self._passes and not self._speaks.asks_for_place():
            self._speaks.say_once(_BLIND)
        if self._speaks.counts_batches() and not enumerations.can_advance():
            self._speaks.say_of_count(0)

    def _go_on_counting(self, iterator: BatchIterator, had: int) -> None:
        """Have an enumerate() around the batches count on behind those that were had."""
        found = enumerations.find_enumerations(iterator, list(_handing_on()))
        if any(id(one) in self._counted for one in found):
            return  # around two loaders side by side: the first of them had it count on
        self._counted = {id(one) for one in found}
        are_advanced = [enumerations.advance(one, had) for one in found]
        if not (found and all(are_advanced)) and self._speaks.counts_batches():
            self._speaks.say_of_count(had)


class Batches:
    """The batches of a loader, each of which is a step of the job."""

    def __init__(self, loop: EpochLoop, loader: DataLoader[Any]) -> None:
        self._loop, self._loader = loop, loader

    def __len__(self) -> int:
        """Return the number of batches in a pass, of those that were had in an earlier life of the job, too."""
        return len(self._loader)

    def __iter__(self) -> BatchIterator:
        """Begin a pass, or go on with the one in which the job has resumed."""
        return BatchIterator(self._loop, self._loader)


class BatchIterator(Iterator[Any]):
    """Hands out the batches of one pass. The pass begins with the first of them."""

    def __init__(self, loop: EpochLoop, loader: DataLoader[Any]) -> None:
        self._loop, self._loader = loop, loader
        self._batches: Iterator[Any] | None = None

    def __next__(self) -> Any:
        """Return the next batch: the step of the one before it is complete."""
        if self._batches is None:
            self._batches = self._loop.go_through(self._loader, self)
        return next(self._batches)


def _made_passes(saved: dict[str, Any]) -> int:
    """Return how many passes of the epoch's body were complete."""
    return int(saved["calls"]) - bool(saved["open"])


def _handing_on() -> Iterator[FrameType]:
    """Functions between the script's loop and the one that asks for a batch: a progress bar's, a logger's generator.

    A generator that asks for job.batches() itself is the script's loop: what counts what it yields counts no batches.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        hands_on = code.co_flags & inspect.CO_GENERATOR and not {"epochs", "batches"} & set(code.co_names)
        if not hands_on and not is_library(code.co_filename):
            return
        yield frame
        frame = frame.f_back

"""Drives the loops that people write: `for epoch in job.epochs(90):` and in it `for batch in job.batches(loader):`.

Each batch is a step. A step is complete when the script asks for the next batch. The step of the last batch of a pass
stays open until the body of the epoch has ended, so that the code behind the loop over batches belongs to this step: a
run that is killed there resumes at the previous step, and repeats the last batch and everything after the batch.

If the job resumes within an epoch, the code before the loop over batches runs again. The changes that this code then
makes to attached objects are undone, because the objects were saved after these changes.

All of this runs in the thread that trains. A "pass" is one iteration over a loader. A pass that is begun within another
pass runs "beside" it, and its batches are no steps.
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
    """The part of the Job that the loops use."""

    step: int

    def restore_rng(self) -> None:
        """Restore the random number generators of the boundary from which the job resumed."""

    def _enter_epochs(self) -> None:
        """Prepare the first step that is made in this process, and restore random numbers."""

    def _go_on_in_loop(self) -> None:
        """Note that a pass begins."""

    def _undo_head(self) -> None:
        """Undo the changes of the epoch's body, which has run again up to the pass in which the job resumes."""

    def _begin_pass(self) -> None:
        """Restore gradients and the variables of the function around the pass, which has reached its next batch."""

    def _pause_loop(self) -> None:
        """Note that the script has left a loop, and may end."""

    def _end_epochs(self) -> None:
        """Save the last step after all epochs, and end the training."""

    def _cross(self) -> None:
        """Complete a step that another step follows."""

    def _complete(self, *, last: bool) -> None:
        """Complete a step. last: no step follows."""

    def _batch_fetched(self, batch: Any) -> None:
        """Note that a step begins with this batch."""

    def _read_generators(self) -> dict[str, Any]:
        """Return the states of all generators, in a form that may be saved."""

    def _put_back_generators(self, state: dict[str, Any]) -> None:
        """Restore all generators from what `_read_generators` has returned."""

    def _keep_elsewhere(self, target: object) -> None:
        """Note that the loops save an object that is not attached, so that no line calls the object unsaved."""

    def _moves(self, sampler: object) -> bool:
        """Return whether an attached sampler is advanced at each step."""


class EpochLoop:
    """The script's place in its epochs, and in the batches of each epoch."""

    def __init__(self, job: Steps, saved: dict[str, Any] | None, rank: int, world_size: int) -> None:
        """Begin at the first epoch, or where the job resumes.

        Args:
            job: the job whose steps the loops make.
            saved: the result of `state` at the step from which the job resumes; None if there is none.
            rank: this rank. Rank 0 speaks to the user.
            world_size: the number of ranks.

        Raises:
            AttachError: another number of ranks has saved `saved`.
        """
        self._job = job
        self._rank = rank
        self._world_size = world_size
        self._speaks = EpochLoops(speaks=rank == 0)
        self._loaders: dict[int, KeptLoader] = {}  # by id of the loader, in the order of their passes
        self._epoch = 0
        self._passes = 0  # passes over all loaders, of all epochs
        self._calls = 0  # passes of this epoch's body that count steps
        self._epoch_at: dict[str, Any] | None = None  # states of all generators at the epoch's beginning
        self._is_used = False
        self._has_entered = False
        self._in_epochs = False
        self._open: list[LoaderPass] = []  # the pass that counts steps, followed by passes beside it
        self._beside: deque[dict[str, Any]] = deque()  # saved passes beside that one, which have not resumed yet
        self._step_is_open = False
        self._counted: set[int] = set()  # ids of each enumerate() around the newest batch whose count was advanced
        self._alive: dict[int, Attributes] = {}  # samplers of the loaders that exist as the job resumes, by loader's id
        self._resumed = saved
        # States of generators that loaders own, if the job resumes between two passes. A loader that the epoch's body
        # makes begins with the generator that the body gives it instead.
        self._own_before: list[Any] = saved["own"] if saved is not None and not saved["open"] else []
        if saved is not None and saved["ranks"] != world_size:
            raise AttachError(
                f"cannot resume on {world_size} ranks what {saved['ranks']} have saved: the passes over their loaders"
                f" are those of {saved['ranks']} ranks; start with {saved['ranks']}, or with --fresh"
            )

    def state(self) -> dict[str, Any] | None:
        """Return the place of the loops at a boundary, in a form that may be saved; None if the script uses no loop.

        Until the resumed pass continues, the saved place is still the current place.
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
            "open": [loader_pass.state() for loader_pass in self._open],
            "own": [kept.between_passes() for kept in self._loaders.values()],
        }

    def is_repeated(self) -> bool:
        """Return whether a job that resumes repeats in full what the script does now.

        That is true in the body of an epoch, except within a pass that counts steps.
        """
        return self._in_epochs and not self._open

    # --- epochs -------------------------------------------------------------------------------------------------

    def epochs(self, total: int) -> Generator[int]:
        """Yield the number of each epoch below `total` that is not complete, from the resumed epoch on."""
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
            self._in_epochs = False
            self._has_entered = False
            job._pause_loop()
        job._end_epochs()

    def _enter(self) -> None:
        """Prepare for the first step that is made in this process. Later calls do nothing."""
        if self._has_entered:
            return
        if self._resumed is not None:
            # isinstance() would ask proxies for their class, which runs code of the proxies.
            loaders = [item for item in gc.get_objects() if issubclass(type(item), DataLoader)]
            self._alive = {id(loader): attributes_of(loader) for loader in loaders}
        self._job._enter_epochs()
        self._is_used = True
        self._has_entered = True

    def _begin_epoch(self) -> None:
        """Begin the epoch's body. In a resumed epoch restore the random numbers with which the body had begun."""
        self._calls = 0
        if self._resumed is not None and self._resumed["calls"]:
            self._epoch_at = self._resumed["epoch_at"]
            self._job._put_back_generators(self._resumed["epoch_at"])
        else:
            self._epoch_at = self._job._read_generators()

    def _end_epoch(self, *, last: bool) -> None:
        """Complete the step of the epoch's last batch, as the epoch's body has run to its end.

        Raises:
            AttachError: the job cannot resume in this epoch, because the script makes fewer passes than before.
        """
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
        was_open = self._step_is_open
        self._step_is_open = False
        self._open.clear()
        self._epoch += 1
        self._calls = 0
        self._epoch_at = None
        if was_open:
            self._job._complete(last=last)
        self._forget_loaders(goes_on=False)

    def finish(self) -> None:
        """Complete the open step, as the script ends its training by job.finish().

        A step is open behind loops that were left early, or that are not in job.epochs().
        """
        if self._step_is_open and not self._in_epochs and not self._open:
            self._step_is_open = False
            self._job._complete(last=True)

    # --- batches ------------------------------------------------------------------------------------------------

    def batches(self, loader: DataLoader[Any]) -> Batches:
        """Return the batches of a loader, each of which is a step. Raises AttachError for anything but a DataLoader."""
        if not isinstance(loader, DataLoader) or hasattr(loader, "base_dataloader"):
            raise AttachError(
                f"cannot take batches from a {type(loader).__name__}: job.batches() takes a DataLoader of torch's; take"
                " the batches of anything else by the number of the step, in a loop over job.steps()"
            )
        return Batches(self, loader)

    def go_through(self, loader: DataLoader[Any], iterator: BatchIterator) -> Iterator[Any]:
        """Yield the batches of a pass. The pass counts steps, unless it begins within another pass.

        Args:
            loader: the loader.
            iterator: the iterator that asks for the batches.
        """
        return self._go_beside(loader, iterator) if self._open else self._lead(loader, iterator)

    def _lead(self, loader: DataLoader[Any], iterator: BatchIterator) -> Iterator[Any]:
        """Yield the batches of a pass that counts steps; of a pass that was complete before the resume, none."""
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
        own_pass = self._begin_pass(kept, iterator)
        try:
            while (batch := own_pass.fetch()) is not NO_BATCH:
                self._job._batch_fetched(batch)
                self._step_is_open = True
                yield batch
                if self._open[:1] != [own_pass]:
                    raise AttachError(
                        "cannot go on with a pass over job.batches(): the body of its epoch has ended, and its last"
                        " step is complete; begin each pass in the epoch that it belongs to"
                    )
                if not own_pass.has_more():
                    break
                self._step_is_open = False
                self._job._cross()
        finally:
            if self._open[:1] == [own_pass]:
                self._open = []
            if not self._in_epochs:
                self._job._pause_loop()

    def _begin_pass(self, kept: KeptLoader, iterator: BatchIterator) -> LoaderPass:
        """Begin a pass, or bring a resumed pass to the batch that follows the boundary from which the job resumed."""
        job = self._job
        saved = self._resumed
        self._resumed = None
        self._counted = set()
        job._go_on_in_loop()
        if saved is not None and (saved["open"] or saved["calls"]):
            job._undo_head()
        if saved is None or not saved["open"]:
            if saved is not None:  # the boundary lies before this pass
                self._passes = saved["passes"]
                if saved["calls"]:
                    job.restore_rng()
            self._warn_about_loops()
            self._passes += 1
            self._open = [kept.begin(self._seed(kept.loader), None)]
        else:
            self._passes = saved["passes"]
            self._beside = deque(saved["open"][1:])
            resumed_pass = kept.begin(0, saved["open"][0])
            job.restore_rng()  # the next batch draws the random numbers of an undisturbed run
            self._open = [resumed_pass]
            self._advance_enumerations(iterator, resumed_pass.had)
        job._begin_pass()
        return self._open[0]

    def _go_beside(self, loader: DataLoader[Any], iterator: BatchIterator) -> Iterator[Any]:
        """Yield the batches of a pass beside the pass that counts steps."""
        kept = self._keep(loader)
        if self._beside:
            generators = shared.read_raw()  # to bring the pass to its place draws random numbers
            own_pass = kept.begin(0, self._beside.popleft())
            shared.put_back_raw(generators)
            self._advance_enumerations(iterator, own_pass.had)
        else:
            self._passes += 1
            own_pass = kept.begin(self._seed(loader), None)
        self._open.append(own_pass)
        try:
            while (batch := own_pass.fetch()) is not NO_BATCH:
                yield batch
        finally:
            if own_pass in self._open:
                self._open.remove(own_pass)

    def _keep(self, loader: DataLoader[Any]) -> KeptLoader:
        """Return the KeptLoader of a loader, made at its first pass. Raises AttachError."""
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
        """Forget the loaders of an epoch, because the next epoch's body may make its loaders itself.

        Args:
            goes_on: whether the job is about to resume, so that the saved states of loaders are still needed.
        """
        self._loaders.clear()
        if not goes_on:
            self._own_before = []

    def _seed(self, loader: DataLoader[Any]) -> int:
        """Return the seed of a new pass, which differs from pass to pass."""
        generator = torch.default_generator if loader.generator is None else loader.generator
        return mixed(generator.initial_seed(), self._passes)

    # --- what the script's loops are like -----------------------------------------------------------------------

    def _warn_about_loops(self) -> None:
        """Warn at the beginning of a pass of loops around the pass whose place a resume will not restore."""
        if self._in_epochs and self._calls > 1:
            self._speaks.say_once(_BETWEEN)
        if not self._in_epochs and self._passes and not self._speaks.asks_for_place():
            self._speaks.say_once(_BLIND)
        if self._speaks.counts_batches() and not enumerations.can_advance():
            self._speaks.say_of_count(0)

    def _advance_enumerations(self, iterator: BatchIterator, count: int) -> None:
        """Advance each enumerate() around the batches by the `count` batches that were had before the resume."""
        found = enumerations.find_enumerations(iterator, list(_forwarding_frames()))
        if any(id(enumeration) in self._counted for enumeration in found):
            return  # around two loaders side by side, the first of which has advanced it
        self._counted = {id(enumeration) for enumeration in found}
        are_advanced = [enumerations.advance(enumeration, count) for enumeration in found]
        if not (found and all(are_advanced)) and self._speaks.counts_batches():
            self._speaks.say_of_count(count)


class Batches:
    """The batches of a loader, each of which is a step of the job."""

    def __init__(self, loop: EpochLoop, loader: DataLoader[Any]) -> None:
        self._loop = loop
        self._loader = loader

    def __len__(self) -> int:
        """Return the number of batches in a pass, including those before a resume."""
        return len(self._loader)

    def __iter__(self) -> BatchIterator:
        """Begin a pass, or continue the pass in which the job resumes."""
        return BatchIterator(self._loop, self._loader)


class BatchIterator(Iterator[Any]):
    """Hands out the batches of one pass, which begins when the first batch is asked for."""

    def __init__(self, loop: EpochLoop, loader: DataLoader[Any]) -> None:
        self._loop = loop
        self._loader = loader
        self._batches: Iterator[Any] | None = None

    def __next__(self) -> Any:
        """Complete the previous batch's step, and return the next batch."""
        if self._batches is None:
            self._batches = self._loop.go_through(self._loader, self)
        return next(self._batches)


def _made_passes(saved: dict[str, Any]) -> int:
    """Return the number of passes of the epoch's body that were complete at the saved place."""
    return int(saved["calls"]) - bool(saved["open"])


def _forwarding_frames() -> Iterator[FrameType]:
    """Yield the frames between the request for a batch and the script's loop: progress bars', generators of loggers.

    A generator that asks for job.batches() itself is the script's loop. An enumerate() around such a generator does not
    count batches.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        is_forwarding = code.co_flags & inspect.CO_GENERATOR and not {"epochs", "batches"} & set(code.co_names)
        if not is_forwarding and not is_library(code.co_filename):
            return
        yield frame
        frame = frame.f_back

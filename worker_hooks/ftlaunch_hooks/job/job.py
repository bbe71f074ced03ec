"""The Job that attach() returns: a rank's part in the job, step by step."""

from __future__ import annotations

import math
import os
import platform
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader

from ftlaunch_contract import protocol, saving_request
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.checkpoint.metadata import Trainings
from ftlaunch_contract.pages.loss_record import NO_SPAN, parse_rule
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import RESTORED_FROM, Flag, Phase, Resume, Why
from ftlaunch_contract.saving_request import SavingRequest
from ftlaunch_hooks.data.positions import Positions
from ftlaunch_hooks.job.boundary import Boundary
from ftlaunch_hooks.job.coordinator import Coordinator
from ftlaunch_hooks.job.early_end import EarlyEnd, Fingerprint, fingerprint, is_left_by_break
from ftlaunch_hooks.job.epoch_loop import Batches, EpochLoop
from ftlaunch_hooks.job.restore import READ_EARLY, AttachError, restore, skip_bad_data
from ftlaunch_hooks.job.resume_verification import ResumeVerification
from ftlaunch_hooks.job.script_end import NO_FINISH, at_ordinary_end
from ftlaunch_hooks.job.trainings import keep_end
from ftlaunch_hooks.observe import replica_digests
from ftlaunch_hooks.observe.loop_beginning import BeginningLoop, beginning_loop, places_of
from ftlaunch_hooks.observe.loss_watch import LossWatch
from ftlaunch_hooks.observe.open_step import OpenStep
from ftlaunch_hooks.observe.proof.step_proof import PLACE_IN_LOOPS
from ftlaunch_hooks.observe.reachable.saved_elsewhere import name_of_kept
from ftlaunch_hooks.observe.step_timer import Stopwatch
from ftlaunch_hooks.observe.unsaved.unsaved_state import UnsavedState
from ftlaunch_hooks.passes.batch_sample import sample_of
from ftlaunch_hooks.process import bootstrap
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.process.signal_watcher import Watcher
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.state.attached import LOOPS
from ftlaunch_hooks.state.state import Choices, RankState
from ftlaunch_hooks.storage.saved_tensors import SavedTensors
from ftlaunch_hooks.tensors.dtypes import local_of

BEGINS_ANEW = (
    "the loop `{written}` ({place}) begins at its first pass, although the job goes on at step {step}: steps that were"
    " made are made once more, and the run is not exact; write `{better}`, or begin where job.step says"
)
_VERSIONS = {"python": platform.python_version(), "torch": torch.__version__, "layout": str(layout.VERSION)}


class Job:
    """This rank's part in the job."""

    def __init__(
        self,
        objects: dict[str, Any],
        choices: Choices,
        coordinator: Coordinator,
        found: Mapping[str, Any],
        trainings: Trainings,
        saved: SavedTensors | None,
        begins_at: int | None = None,
    ) -> None:
        """Restore and take the first snapshot; use attach().

        Args:
            objects: what is attached, by name.
            choices: the options of attach().
            coordinator: decides for this rank.
            found: generators among the caller's variables.
            trainings: see known_trainings.
            saved: see known_trainings.
            begins_at: the step of which `objects` hold the state already, so that nothing is restored.
        """
        self._coordinator, self._page = coordinator, coordinator.page
        self._watcher, self._trainings = Watcher(coordinator.on_term, coordinator.on_orphaned), trainings
        self._take(objects, choices, found)
        kind, step = coordinator.resume()
        if begins_at is not None:
            kind, step, saved = Resume.FRESH, begins_at, None
        restored = restore(self._state, self._positions, kind, step, coordinator, saved)
        if self._positions.read_early and coordinator.rank == 0:
            say(READ_EARLY.format(name=self._positions.read_early[0]))
        self._restored = restored  # until the loop begins in which the job goes on
        self._has_passed_loops = False
        if not trainings.ends:
            skip_bad_data(self._positions, coordinator.checkpoint_dir)
        self.step: int = 0 if kind == Resume.WEIGHTS else step  # of weights it is the step of the checkpoint
        self._follow_loops()
        self.attempt: int = coordinator.attempt
        self.restored_from: str | None = RESTORED_FROM.get(kind)
        self.from_other_job = kind == Resume.LOADED
        self._in_loop = False
        self._open_step = OpenStep(self)
        self._total = 0  # steps that the newest loop of steps() was to make
        self._early_end: EarlyEnd | None = None  # of that loop, where it was left before its last step
        self._kept: int = self.step  # the newest step that was restored, or held for the saver
        self._page.consumed = restored.consumed_samples if restored is not None else 0
        self._snapshots = Snapshotter(
            self._state, self._page, coordinator.peers, coordinator.memory_dir,
            coordinator.rank, _VERSIONS, step if kind.in_memory else NONE, coordinator.storage_slots,
        )  # fmt: skip
        self._snapshots.trainings = trainings
        self._snapshots.seeds = bootstrap.own_seeds()
        self._watch = Stopwatch(self._page, compared=coordinator.world_size > 1)
        self._losses = LossWatch(self._page, parse_rule(os.environ.get(protocol.ENV_SPIKE, "")))
        names_go_to = coordinator.memory_dir if coordinator.rank == coordinator.node.first else None
        self._snapshots.digests = replica_digests.asked_for(self._page, coordinator.world_size, names_go_to)
        self._verification = ResumeVerification(coordinator)
        self._boundary = Boundary(
            coordinator, self._state, self._snapshots, self._watch, self._losses, self._verification.note_snapshot
        )
        self._begin(kind, objects)
        self._known = dict(objects)
        self._unsaved = UnsavedState(self._known, self._page, coordinator.rank, self._state, choices)
        self._unsaved.pass_by(self._epoch_loop.makes_again)

    def _take(self, objects: dict[str, Any], choices: Choices, found: Mapping[str, Any]) -> None:
        self._state = RankState(
            objects, choices.frozen, self._coordinator.rank, self._coordinator.world_size, self._coordinator.peers,
            found, self._coordinator.node, choices.replicated, choices.anew, choices.stands_for,
        )  # fmt: skip
        self._positions = Positions(objects, choices.frozen, counted_before=bool(self._trainings.ends))

    def _follow_loops(self) -> None:
        """Have the loops of epochs() and batches() begin, or go on where the restored state was in them."""
        ranks = self._coordinator.world_size
        self._epoch_loop = EpochLoop(self, self._state.saved_loops, self._coordinator.rank, ranks)
        self._state.loops = self._epoch_loop.state

    def _attach_again(self, objects: dict[str, Any], choices: Choices, found: Mapping[str, Any]) -> None:
        """Another training of this process begins, one step behind the end of the one before: see attach()."""
        with self.phase("checkpoint"):
            self._boundary.await_saver(self.step)
            keep_end(self.step, self._snapshots, self._coordinator)
        self._trainings = self._trainings.followed_by(choices.training, self.step)
        self.step += 1
        self._unsaved.close()
        self.restored_from = self._early_end = self._restored = None
        self._take(objects, choices, found)
        self._follow_loops()
        self._page.consumed, self._page.phase = 0, Phase.STARTUP
        self._page.lower_flag(Flag.LOOP_LEFT)
        self._state.hold_structure()
        self._boundary.turn_to(self._state, self._trainings, self.step)
        self._verification.begin(objects, self.step, Resume.FRESH, is_comparable=False)
        self._state.restore_rng()  # there is nothing to put back: from the first step on the numbers are saved
        self._known = dict(objects)
        self._unsaved = UnsavedState(self._known, self._page, self._coordinator.rank, self._state, choices)
        self._unsaved.pass_by(self._epoch_loop.makes_again)

    def _watch_beginning(self, frame: FrameType) -> None:
        """Look whether the script's own loop begins at its first pass though the job has resumed.

        frame: in which the script, and no adapter, has called attach().
        """
        if not self.resumed or self.step <= self.began_at or self._coordinator.rank != 0:
            return
        attached_at, step = places_of(frame), self.step

        def _look(stepping: FrameType) -> bool:
            if self._in_loop or self.step != step or self._positions.any:
                return True
            loop = beginning_loop(stepping, self, attached_at)
            if isinstance(loop, BeginningLoop):
                say(BEGINS_ANEW.format(written=loop.written, place=loop.place, better=loop.better, step=step))
            return bool(loop)

        self._open_step.before_first = _look

    # --- what a script may ask ----------------------------------------------------------------------------

    @property
    def began_at(self) -> int:
        """The step at which this training began: 0, or one behind the end of the training before it."""
        return self._trainings.ends[-1] + 1 if self._trainings.ends else 0

    @property
    def is_over(self) -> bool:
        """Whether the training is, and its last step is kept: the process may attach what it trains next."""
        return bool(self._page.flags & Flag.LOOP_LEFT) and self._kept == self.step

    @property
    def resumed(self) -> bool:
        """Whether the state came from an earlier attempt."""
        return self.restored_from is not None

    @property
    def stop_requested(self) -> bool:
        """Whether the job was told to stop; steps() ends it at the agreed step by itself."""
        return self._coordinator.orders.stop_at != NONE or self._page.stop_wanted != 0

    def steps(self, total: int) -> Generator[int]:
        """Yield the number of each step still to be made, up to `total`; one pass of the loop is one step.

        Told to stop, it raises SystemExit with code 75 (checkpoint committed) at the agreed step. Without a supervisor
        it raises StateError where another rank makes another number of steps: they would wait without end.
        """
        self._come_to_loop(total)
        self._unsaved.loop_begins(self.step, self._state.random_numbers(), end=total)
        self._enter()
        began = self.step
        if began == total:  # the loop has ended where the job goes on: what the script draws behind it is drawn anew
            self._state.settle_rng()
        self._snapshots.budget.progress.intend(total)
        self._total, self._early_end = total, None
        try:
            step, quietly, end_step = self.step, self._boundary.cross_quietly, self._verification.end_step
            while step < total:
                yield step
                step += 1
                if step < total and quietly(step):
                    self.step = step
                    end_step(step)
                else:
                    self._complete(last=step == total)
        except GeneratorExit:
            self._leave_early(sys._getframe().f_back)
            raise
        finally:
            self._leave_loop()
        if self.step > began:
            self._unsaved.loop_left(self._state.random_numbers())
        self._coordinator.finish()

    def epochs(self, total: int) -> Generator[int]:
        """Yield the number of each epoch still to be made, up to `total`.

        In the body go through `batches(loader)`. A job that resumes goes on in the epoch it was in. What stands behind
        the batches in the body runs once in effect: where a run is killed there, the next one goes on before the
        epoch's last batch. What stands before them runs again as a job resumes within the epoch, with the random
        numbers with which it had begun. Told to stop, it raises SystemExit as steps() does.
        """
        return self._epoch_loop.epochs(total)

    def batches(self, loader: DataLoader[Any]) -> Batches:
        """Return the batches of a DataLoader, to be gone through by a `for`; each batch is a step.

        A job that resumes goes on behind the batches that it had: of a map-style data set it does not load them again.
        An enumerate() around them goes on at its number. A second loader beside the first, as in
        `zip(job.batches(one), job.batches(other))`, goes on where it was, and its batches are no steps of their own.
        Raises AttachError for anything but a DataLoader, StateError for one whose passes cannot be brought back.
        """
        return self._epoch_loop.batches(loader)

    def step_done(self, loss: float | None = None) -> None:
        """Say that a step is complete, in a loop without steps(); within steps() only the loss is noted.

        loss: of this rank. A loss that is not finite is told to the supervisor at once: the script may raise next.
        """
        if loss is not None:
            self._page.loss = loss
            self._verification.note_loss(self._page.loss)
            self._losses.note(self._page.loss)
            self._boundary.be_heard(self.step + 1)
            if self._in_loop and not math.isfinite(self._page.loss):
                span = (self._page.consumed, self._positions.ahead()) if self._positions.skippable else NO_SPAN
                self._losses.judge(self.step + 1, *span)
        if self._in_loop:
            return
        if self._page.phase == Phase.STARTUP or self._page.flags & Flag.LOOP_LEFT:
            self._page.phase = Phase.TRAIN
            self._page.lower_flag(Flag.LOOP_LEFT)
        self._cross()
        self._early_end = None

    def finish(self) -> None:
        """Say that the training is over, behind a loop of one's own; steps() says it by itself.

        The last step is saved. Call it on every rank, after the last step_done(); a second call does nothing.
        Raises AttachError within a loop of steps(), StateError when the state cannot be saved.
        """
        self._epoch_loop.finish()
        if self._in_loop:
            raise AttachError(
                "cannot finish: the loop of steps() or epochs() goes on; call finish() behind it, or not at all"
            )
        self._early_end = None
        if self.is_over:
            return
        self._verification.cancel_stop()
        if self._kept != self.step:
            self._keep_last()
        self._leave_loop()
        self._coordinator.finish()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Say what the script does when it does not train: "eval", "checkpoint", "startup" or "teardown"."""
        before, self._page.phase = self._page.phase, Phase.named(name)
        began = time.monotonic_ns()
        try:
            yield
        finally:
            self._watch.excuse(time.monotonic_ns() - began)
            self._page.phase = before

    def restore_rng(self) -> None:
        """Put the random number generators back where they were at the boundary that the job resumed from.

        steps() has done it when the first step begins. Where that step then draws what an undisturbed run does not draw
        there (a loader that makes a DataLoader's iterator at its first batch), call it after that, in every step, and
        before anything else is drawn: after the first step, and where nothing was restored, it does nothing.
        """
        self._state.restore_rng()

    def save(self) -> None:
        """Ask for a checkpoint of one of the next steps; returns at once. One rank asking is enough."""
        self._page.want_save = self.step

    def ask_saves(self, request: SavingRequest) -> dict[str, str]:
        """Have state saved as a script asks by another library's call; return the settings that hold in its place.

        Call it between attach() and the first step, on every rank, with the same request. With `steps` each step that
        is a multiple is saved, and between them only what somebody asks for. Settings that the job was given win; the
        names of those that contradict the request are returned, with the option that a person would write.
        """
        left, given = request.against(saving_request.read_given(os.environ))
        if left != SavingRequest(ahead=left.ahead):
            self._boundary.ask_saves(self.step, left)
        return given

    # --- what the loops of epochs() and batches() ask for: see epoch_loop.Steps ------------------------------------

    def _enter_epochs(self) -> None:
        self._unsaved.loop_begins(self.step, self._state.random_numbers())
        self._enter()

    def _go_on_in_loop(self) -> None:
        self._in_loop = True
        self._page.lower_flag(Flag.LOOP_LEFT)
        self._page.phase = Phase.TRAIN

    def _undo_head(self) -> None:
        restored, self._restored = self._restored, None
        if restored is not None and self.resumed and self._state.find_changed():
            self._state.restore_again(restored)

    def _begin_pass(self) -> None:
        self._state.put_back_gradients()
        self._unsaved.inner_loop_begins()

    def _pause_loop(self) -> None:
        self._in_loop = False

    def _end_epochs(self) -> None:
        self._verification.cancel_stop()
        if self._kept != self.step:
            self._keep_last()
        self._leave_loop()
        self._unsaved.loop_left(self._state.random_numbers())
        self._coordinator.finish()

    def _cross(self) -> None:
        if self._boundary.cross_quietly(self.step + 1):
            self.step += 1
            self._verification.end_step(self.step)
        else:
            self._complete(last=False)

    def _batch_fetched(self, batch: Any) -> None:
        self._verification.note_batch(sample_of([batch]))

    def _read_generators(self) -> dict[str, Any]:
        return self._state.read_generators()

    def _put_back_generators(self, state: dict[str, Any]) -> None:
        self._state.put_back_generators(state)

    def _keep_elsewhere(self, target: object) -> None:
        self._known[name_of_kept(target)] = target

    def _moves(self, sampler: object) -> bool:
        return self._positions.moves(sampler)

    # --- the beginning, and step by step -------------------------------------------------------------------

    def _begin(self, kind: Resume, objects: Mapping[str, Any]) -> None:
        """Take the first snapshot, unless the state comes from one, and tell that this rank is attached."""
        self._state.hold_structure()
        self._boundary.open(self.step, kind)
        are_other_ranks = self._restored is not None and self._restored.world_size != self._coordinator.world_size
        is_comparable = not (self._state.begins_anew or self._positions.are_moved_on_otherwise() or are_other_ranks)
        is_resumed = kind.in_memory or kind is Resume.STORAGE
        if self._restored is not None:  # also where another job's checkpoint is gone on from
            self._state.sample_restored()
        found = self._state.find_restored_otherwise() if is_resumed and is_comparable else []
        restored_otherwise = [PLACE_IN_LOOPS if name == LOOPS else name for name in found]
        self._verification.begin(
            objects, self.step, kind, is_comparable=is_comparable, restored_otherwise=restored_otherwise
        )
        self._page.beat(self.step, time.monotonic_ns())
        self._page.raise_flag(Flag.ATTACHED)
        self._boundary.announce(self.step + 1)
        if not self._state.awaits_steps:
            self._state.restore_rng()  # for a script's own loop; steps() does it again
        at_ordinary_end(self._script_ends)

    def _begin_training(self) -> None:
        if self._state.restore_rng():  # not earlier: making a DataLoader's iterator draws from the generators
            self._verification.check_random_numbers()
        self._state.training_begins()
        self._page.phase = Phase.TRAIN
        self._boundary.begin(time.monotonic_ns())

    def _enter(self) -> None:
        self._begin_training()
        self._page.lower_flag(Flag.LOOP_LEFT)
        self._in_loop = self._state.in_steps = True
        self._coordinator.at_boundary(self.step)
        if NONE != self._coordinator.orders.stop_at <= self.step:  # attach() has taken the snapshot
            self._coordinator.held(self._snapshots, self.step, Why.STOP)
            self._stop()

    def _come_to_loop(self, total: int) -> None:
        """A loop of steps() begins. Behind loops that ended before this step the script has run its code once more.

        What that code has done to attached objects (a scheduler's step at the end of an epoch) is undone.
        """
        if total < self.step:
            self._has_passed_loops = True
        elif self._restored is not None:
            if self._has_passed_loops and self.resumed:
                self._state.restore_again(self._restored)
            self._restored = None

    def _leave_loop(self) -> None:
        self._in_loop = False
        self._page.phase = Phase.TEARDOWN
        self._page.raise_flag(Flag.LOOP_LEFT)

    def _leave_early(self, frame: FrameType | None) -> None:
        """The generator of steps() is closed: the step under way counts where `break` leaves the loop behind it.

        frame: in which that has happened. Where the body has raised, the other ranks may never come to this boundary.
        """
        if sys.is_finalizing() or self._verification.is_stopping:
            return
        if is_left_by_break(frame) and (self._open_step.is_made or not self._open_step.is_known):
            self._complete(last=True)
        self._early_end = EarlyEnd(self._total, self._fingerprint())

    def _fingerprint(self) -> Fingerprint:
        """Of the attached modules."""
        parts = [part.tensors()[0] for part in self._state.modules()]
        return fingerprint(local_of(tensor) for tensors in parts for tensor in tensors.values())

    def _complete(self, *, last: bool) -> None:
        """A step is complete: count it, judge it, and cross the boundary."""
        self._verification.end_step(self.step + 1)
        now = time.monotonic_ns()
        self.step = step = self.step + 1
        if self._positions.any or self._losses.noted is not None:
            self._count(step)
        if step >= self._unsaved.due:
            self._unsaved.step_made(own=not self._in_loop)
        hold = self._boundary.cross(step, now, last=last)
        self._boundary.be_heard(step + 1 if self._positions.any else self._unsaved.due)
        if hold is not None:
            self._kept = step
            if hold != Why.STOP:
                self._verification.leave_copy_at_next_step()
            elif self._verification.should_make_another_step():
                self._snapshots.settle()
                self._verification.make_another_step(self._stop)
            else:
                self._stop()

    def _count(self, step: int) -> None:
        """Move the data position on, and judge the loss that was noted."""
        span = NO_SPAN
        if self._positions.any:
            span = self._page.consumed, self._positions.advance()
            self._page.consumed = span[1]
        self._losses.judge(step, *(span if self._positions.skippable else NO_SPAN))

    def _keep_last(self) -> None:
        """Have the last step saved, by its snapshot or by one that is taken now."""
        step = self.step
        self._snapshots.settle()
        self._boundary.await_saver(step)
        if self._snapshots.newest == step:
            self._page.hold_for_saver(step, Why.END)
        elif self._open_step.is_made:
            say(f"job.finish() saves no step {step}: an optimizer has stepped since, and no step_done() has followed")
            return
        else:
            self._boundary.keep_last(step)
        self._kept = step
        self._coordinator.held(self._snapshots, step, Why.END)

    def _script_ends(self, ends_well: bool) -> None:
        """The interpreter ends: unless it was told to stop, the script has ended the training."""
        self._verification.leave_if_stopping()
        self._watcher.catch_up()  # a handler of the script's own may run before the watcher's thread
        if self.stop_requested and self._early_end is not None:
            # a handler of the script's own has heard the signal as well, and had the loop left: that is no end
            self._page.raise_flag(Flag.STOPPED)
        if self.stop_requested or (self._in_loop and not ends_well):
            return
        is_silent = bool(self._page.flags & Flag.LOOP_LEFT) and self._early_end is None  # steps() or finish() said it
        if self._in_loop:  # its generator was not closed, as where islice() takes some of its steps
            self._early_end = EarlyEnd(self._total, None)
            if self._open_step.is_made:
                self._complete(last=True)
        kept = self._keep_at_end() if ends_well and not is_silent else self._newest_in_memory()
        self._leave_loop()
        if is_silent:
            return
        if ends_well:
            self._coordinator.finish()
        if self._coordinator.rank == 0:
            early = self._early_end
            say(NO_FINISH.format(step=self.step, kept=kept) if early is None else early.sentence(self.step, kept))

    def _keep_at_end(self) -> str:
        """Have the last step saved as the script ends; returns what became of it, a clause."""
        left = None if self._early_end is None else self._early_end.state
        must_be_taken = self.step not in (self._kept, self._snapshots.newest)
        if must_be_taken and left is not None and left != self._fingerprint():
            return (
                f"what is attached was changed since then, and its last step is not saved: {self._newest_in_memory()};"
                " job.finish() behind the loop saves it"
            )
        if self._kept != self.step:
            self._keep_last()
        return f"step {self.step} is saved" if self._kept == self.step else self._newest_in_memory()

    def _newest_in_memory(self) -> str:
        return f"step {self._snapshots.newest} is the newest in memory"

    def _stop(self) -> None:
        self._snapshots.settle()
        self._page.raise_flag(Flag.STOPPED)
        self._page.phase = Phase.TEARDOWN
        raise SystemExit(self._coordinator.leave())

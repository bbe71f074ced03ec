"""The Job that attach() returns: a rank's part in the job, step by step.

A Job connects the parts of the hooks: the state, the data positions, the snapshots, the boundary between steps, the
loops of epochs() and batches(), and the checks of unsaved state and resumes. The script and the adapters call a Job in
the thread that trains.
"""

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

LOOP_RESTARTS = (
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
        """Restore the state, and take the first snapshot. Scripts call attach() instead.

        Args:
            objects: attached objects by name.
            choices: the options of attach().
            coordinator: this rank's coordinator.
            found: generators among the caller's variables.
            trainings: the trainings of this process up to this one, from known_trainings().
            saved: the saved state, from known_trainings().
            begins_at: the step whose state `objects` have already, so that nothing is restored.

        Raises:
            AttachError: no saved state may be used, or the script asks for something that cannot be done.
            StateError: the saved state does not fit the objects.
            Damaged: the saved state cannot be read.
        """
        self._coordinator = coordinator
        self._page = coordinator.page
        self._watcher = Watcher(coordinator.on_term, coordinator.on_orphaned)
        self._trainings = trainings
        self._hold_objects(objects, choices, found)
        kind, step = coordinator.resume()
        if begins_at is not None:
            kind = Resume.FRESH
            step = begins_at
            saved = None
        restored = restore(self._state, self._positions, kind=kind, step=step, coordinator=coordinator, opened=saved)
        if self._positions.read_early and coordinator.rank == 0:
            say(READ_EARLY.format(name=self._positions.read_early[0]))
        self._restored = restored
        """the saved state, until the loop begins in which the job resumes"""
        self._has_passed_loops = False
        if not trainings.ends:
            skip_bad_data(self._positions, coordinator.checkpoint_dir)
        self.step: int = 0 if kind == Resume.WEIGHTS else step  # weights have the step of their checkpoint
        """number of completed steps"""
        self._follow_loops()
        self.attempt: int = coordinator.attempt
        """number of this attempt of the job"""
        self.restored_from: str | None = RESTORED_FROM.get(kind)
        """where the state came from: "memory", "peer" or "storage"; None if training begins"""
        self.from_other_job = kind == Resume.LOADED
        """whether the state is of another job's checkpoint"""
        self._in_loop = False
        """whether a loop of steps(), or of epochs() and batches(), makes the steps now"""
        self._open_step = OpenStep(self)
        self._loop_total = 0
        """number of the last step of the newest loop of steps()"""
        self._early_end: EarlyEnd | None = None
        """set if that loop was left before its last step"""
        self._kept_step: int = self.step
        """the newest step that was restored, or is held for the saver"""
        self._page.consumed = restored.consumed_samples if restored is not None else 0
        self._snapshots = Snapshotter(
            state=self._state,
            page=self._page,
            peers=coordinator.peers,
            directory=coordinator.memory_dir,
            rank=coordinator.rank,
            versions=_VERSIONS,
            base=step if kind.in_memory else NONE,
            storage=coordinator.storage_slots,
        )
        self._snapshots.trainings = trainings
        self._snapshots.seeds = bootstrap.own_seeds()
        self._stopwatch = Stopwatch(self._page, compared=coordinator.world_size > 1)
        self._losses = LossWatch(self._page, parse_rule(os.environ.get(protocol.ENV_SPIKE, "")))
        names_folder = coordinator.memory_dir if coordinator.rank == coordinator.node.first else None
        self._snapshots.find_trouble = lambda: self._losses.trouble
        self._snapshots.digests = replica_digests.asked_for(self._page, coordinator.world_size, names_folder)
        self._verification = ResumeVerification(coordinator)
        self._boundary = Boundary(
            coordinator,
            state=self._state,
            snapshots=self._snapshots,
            watch=self._stopwatch,
            before_snapshot=self._verification.note_snapshot,
        )
        self._begin(kind, objects)
        self._search_unsaved_state(objects, choices)

    def _hold_objects(self, objects: dict[str, Any], choices: Choices, found: Mapping[str, Any]) -> None:
        """Make the state and the data positions of the attached objects."""
        self._state = RankState(
            objects=objects,
            frozen=choices.frozen,
            rank=self._coordinator.rank,
            world_size=self._coordinator.world_size,
            peers=self._coordinator.peers,
            found=found,
            node=self._coordinator.node,
            replicated=choices.replicated,
            anew=choices.anew,
            stands_for=choices.stands_for,
        )
        self._positions = Positions(objects, choices.frozen, counted_before=bool(self._trainings.ends))

    def _search_unsaved_state(self, objects: Mapping[str, Any], choices: Choices) -> None:
        """Begin to check for state of the training that no attached object saves."""
        self._known_objects = dict(objects)
        """attached objects, and objects that the loops save, by name"""
        self._unsaved = UnsavedState(
            self._known_objects, page=self._page, rank=self._coordinator.rank, state=self._state, choices=choices
        )
        self._unsaved.set_is_repeated(self._epoch_loop.is_repeated)

    def _follow_loops(self) -> None:
        """Make the loops of epochs() and batches(), which begin, or continue where the restored state was."""
        self._epoch_loop = EpochLoop(
            self,
            saved=self._state.saved_loops,
            rank=self._coordinator.rank,
            world_size=self._coordinator.world_size,
        )
        self._state.loops = self._epoch_loop.state

    def _begin_next_training(self, objects: dict[str, Any], choices: Choices, found: Mapping[str, Any]) -> None:
        """Begin another training of this process, one step after the end of the training before. attach() calls this.

        Args:
            objects: attached objects of the new training, by name.
            choices: the options of attach().
            found: generators among the caller's variables.
        """
        with self.phase("checkpoint"):
            self._boundary.await_saver(self.step)
            keep_end(self.step, self._snapshots, self._coordinator)
        self._trainings = self._trainings.followed_by(choices.training, self.step)
        self.step += 1
        self._unsaved.close()
        self.restored_from = self._early_end = self._restored = None
        self._hold_objects(objects, choices, found)
        self._follow_loops()
        self._page.consumed = 0
        self._page.phase = Phase.STARTUP
        self._page.lower_flag(Flag.LOOP_LEFT)
        self._state.hold_structure()
        self._snapshots.turn_to(self._state, self._trainings)
        self._boundary.turn_to(self._state, self.step)
        self._verification.begin(objects, self.step, Resume.FRESH, is_comparable=False)
        self._state.restore_rng()  # nothing is restored; from the first step on the random numbers are saved
        self._search_unsaved_state(objects, choices)

    def _watch_beginning(self, frame: FrameType) -> None:
        """Check at the first optimizer step whether the script's own loop begins anew although the job has resumed.

        Args:
            frame: the frame in which the script, and no adapter, has called attach().
        """
        if not self.resumed or self.step <= self.began_at or self._coordinator.rank != 0:
            return
        attached_at = places_of(frame)
        step = self.step

        def _check_loop(stepping: FrameType) -> bool:
            if self._in_loop or self.step != step or self._positions.any:
                return True
            loop = beginning_loop(stepping, self, attached_at)
            if isinstance(loop, BeginningLoop):
                say(LOOP_RESTARTS.format(written=loop.written, place=loop.place, better=loop.better, step=step))
            return bool(loop)

        self._open_step.before_first = _check_loop

    # --- for scripts --------------------------------------------------------------------------------------

    @property
    def began_at(self) -> int:
        """The step at which this training began: 0, or one more than the last step of the training before."""
        return self._trainings.ends[-1] + 1 if self._trainings.ends else 0

    @property
    def is_over(self) -> bool:
        """Whether the training has ended and its last step is kept, so that the process may attach its next one."""
        return bool(self._page.flags & Flag.LOOP_LEFT) and self._kept_step == self.step

    @property
    def resumed(self) -> bool:
        """Whether the state came from an earlier attempt."""
        return self.restored_from is not None

    @property
    def stop_requested(self) -> bool:
        """Whether the job was told to stop. steps() ends the job at the agreed step by itself."""
        return self._coordinator.orders.stop_at != NONE or self._page.stop_wanted != 0

    def steps(self, total: int) -> Generator[int]:
        """Yield the number of each step still to be made, up to `total`. One pass of the loop is one step.

        Args:
            total: number of steps of the training, including those before a resume.

        Raises:
            SystemExit: the job was told to stop, at the agreed step; code 75 means that its checkpoint is committed.
            StateError: another rank makes another number of steps, without a supervisor; the ranks would wait for ever.
        """
        self._come_to_loop(total)
        self._unsaved.loop_begins(self.step, self._state.random_numbers(), end=total)
        self._enter()
        began = self.step
        if began == total:  # the job resumes at this loop's end, and the script draws anew after the loop
            self._state.settle_rng()
        self._snapshots.budget.progress.intend(total)
        self._loop_total = total
        self._early_end = None
        try:
            # Local names, because this loop runs at every step.
            step = self.step
            cross_quietly = self._boundary.cross_quietly
            end_step = self._verification.end_step
            while step < total:
                yield step
                step += 1
                if step < total and cross_quietly(step):
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
        """Yield the number of each epoch still to be made, up to `total`. The body goes through `batches(loader)`.

        A job that resumes continues in its epoch. Code before the batches in the body runs again, with the random
        numbers that the epoch began with. Code after the batches has its effect once: a run that is killed there
        resumes before the epoch's last batch.

        Args:
            total: number of epochs of the training, including those before a resume.

        Raises:
            SystemExit: the job was told to stop, as in steps().
        """
        return self._epoch_loop.epochs(total)

    def batches(self, loader: DataLoader[Any]) -> Batches:
        """Return the batches of a DataLoader, for a `for` loop. Each batch is a step.

        A job that resumes continues after the batches that it had, and does not load the batches of a map-style data
        set again. An enumerate() around the batches continues at its number. A second loader beside the first, as in
        `zip(job.batches(one), job.batches(other))`, continues where it was, and its batches are no steps of their own.

        Raises:
            AttachError: `loader` is no DataLoader.
            StateError: the loader's passes cannot be restored.
        """
        return self._epoch_loop.batches(loader)

    def step_done(self, loss: float | None = None) -> None:
        """Complete a step, in a loop without steps(). Within steps() only the loss is noted.

        Args:
            loss: this rank's loss. A loss that is not finite is reported to the supervisor at once, because the script
                may raise next.
        """
        if loss is not None:
            self._page.loss = loss
            self._verification.note_loss(self._page.loss)
            self._losses.note(self._page.loss)
            self._boundary.end_quiet_at(self.step + 1)
            if self._in_loop and not math.isfinite(self._page.loss):
                span = (self._page.consumed, self._positions.ahead()) if self._positions.skippable else NO_SPAN
                begin, end = span
                self._losses.judge(self.step + 1, begin, end)
        if self._in_loop:
            return
        if self._page.phase == Phase.STARTUP or self._page.flags & Flag.LOOP_LEFT:
            self._page.phase = Phase.TRAIN
            self._page.lower_flag(Flag.LOOP_LEFT)
        self._cross()
        self._early_end = None

    def finish(self) -> None:
        """End the training after a loop of one's own, and save the last step. steps() does this by itself.

        Call this on every rank, after the last step_done(). A second call does nothing.

        Raises:
            AttachError: the call is within a loop of steps() or epochs().
            StateError: the state cannot be saved.
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
        if self._kept_step != self.step:
            self._keep_last()
        self._leave_loop()
        self._coordinator.finish()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Report what the script does while it does not train. The time within counts as no training.

        Args:
            name: "eval", "checkpoint", "startup" or "teardown".
        """
        before = self._page.phase
        self._page.phase = Phase.named(name)
        began = time.monotonic_ns()
        try:
            yield
        finally:
            self._stopwatch.excuse(time.monotonic_ns() - began)
            self._page.phase = before

    def restore_rng(self) -> None:
        """Restore the random number generators to the boundary from which the job resumed.

        steps() does this as the first step begins. If that step then draws numbers that an undisturbed run does not
        draw there (a loader that makes a DataLoader's iterator at its first batch), call this after those draws, in
        every step, and before anything else is drawn. After the first step, and if nothing was restored, the call does
        nothing.
        """
        self._state.restore_rng()

    def save(self) -> None:
        """Ask for a checkpoint of one of the next steps, and return at once. The call of one rank is enough."""
        self._page.want_save = self.step

    def ask_saves(self, request: SavingRequest) -> dict[str, str]:
        """Ask for checkpoints as a script asks another library. Settings that the job was given win.

        Call this between attach() and the first step, on every rank, with the same request. With `steps` each step that
        is a multiple is saved, and other steps only at a request.

        Args:
            request: the checkpoints that the script asks for.

        Returns:
            The settings of the job that contradict the request: the option as a person would write it, by name.
        """
        remaining, given = request.against(saving_request.read_given(os.environ))
        if remaining != SavingRequest(ahead=remaining.ahead):
            self._boundary.ask_saves(self.step, remaining)
        return given

    # --- for the loops of epochs() and batches(): the methods of epoch_loop.Steps ----------------------------------

    def _enter_epochs(self) -> None:
        self._unsaved.loop_begins(self.step, self._state.random_numbers())
        self._enter()

    def _go_on_in_loop(self) -> None:
        self._in_loop = True
        self._page.lower_flag(Flag.LOOP_LEFT)
        self._page.phase = Phase.TRAIN

    def _undo_head(self) -> None:
        restored = self._restored
        self._restored = None
        if restored is not None and self.resumed and self._state.find_changed():
            self._state.restore_once_more(restored)

    def _begin_pass(self) -> None:
        self._state.put_back_gradients()
        self._unsaved.inner_loop_begins()

    def _pause_loop(self) -> None:
        self._in_loop = False

    def _end_epochs(self) -> None:
        self._verification.cancel_stop()
        if self._kept_step != self.step:
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
        self._known_objects[name_of_kept(target)] = target

    def _moves(self, sampler: object) -> bool:
        return self._positions.moves(sampler)

    # --- the beginning, and step by step -------------------------------------------------------------------

    def _begin(self, kind: Resume, objects: Mapping[str, Any]) -> None:
        """Take the first snapshot, unless the state comes from a snapshot, and report that this rank is attached."""
        self._state.hold_structure()
        self._boundary.open(self.step, kind)
        is_resharded = self._restored is not None and self._restored.world_size != self._coordinator.world_size
        is_comparable = not (
            self._state.has_restarted_objects or self._positions.are_moved_on_otherwise() or is_resharded
        )
        is_resumed = kind.in_memory or kind is Resume.STORAGE
        if self._restored is not None:  # another job's checkpoint counts, too
            self._state.sample_restored()
        names = self._state.find_restored_otherwise() if is_resumed and is_comparable else []
        restored_otherwise = [PLACE_IN_LOOPS if name == LOOPS else name for name in names]
        self._verification.begin(
            objects, self.step, kind, is_comparable=is_comparable, restored_otherwise=restored_otherwise
        )
        self._page.beat(self.step, time.monotonic_ns())
        self._page.raise_flag(Flag.ATTACHED)
        self._boundary.announce(self.step + 1)
        if not self._state.awaits_steps:
            self._state.restore_rng()  # for a script's own loop; steps() restores once more
        at_ordinary_end(self._script_ends)

    def _begin_training(self) -> None:
        """Restore the random numbers, and begin the first step of this process."""
        if self._state.restore_rng():  # not earlier: making a DataLoader's iterator draws from the generators
            self._verification.check_random_numbers()
        self._state.training_begins()
        self._page.phase = Phase.TRAIN
        self._boundary.begin(time.monotonic_ns())

    def _enter(self) -> None:
        """Begin a loop whose steps are counted. Ends this process if the job is to stop at the present step."""
        self._begin_training()
        self._page.lower_flag(Flag.LOOP_LEFT)
        self._in_loop = self._state.in_steps = True
        self._coordinator.at_boundary(self.step)
        if NONE != self._coordinator.orders.stop_at <= self.step:  # attach() has taken the snapshot
            self._coordinator.held(self._snapshots, self.step, Why.STOP)
            self._stop()

    def _come_to_loop(self, total: int) -> None:
        """Undo what the script has done to attached objects while it passed loops that ended before this step.

        After such loops the script has run code once more that changes attached objects, as a scheduler's step at the
        end of an epoch.

        Args:
            total: number of the last step of the loop of steps() that begins.
        """
        if total < self.step:
            self._has_passed_loops = True
        elif self._restored is not None:
            if self._has_passed_loops and self.resumed:
                self._state.restore_once_more(self._restored)
            self._restored = None

    def _leave_loop(self) -> None:
        self._in_loop = False
        self._page.phase = Phase.TEARDOWN
        self._page.raise_flag(Flag.LOOP_LEFT)

    def _leave_early(self, frame: FrameType | None) -> None:
        """Note that the generator of steps() was closed before its last step.

        A step under way counts if `break` leaves the loop after an optimizer has stepped. If the body has raised, the
        step does not count, because the other ranks may never come to this boundary.

        Args:
            frame: the frame whose loop has dropped the generator.
        """
        if sys.is_finalizing() or self._verification.is_stopping:
            return
        if is_left_by_break(frame) and (self._open_step.is_made or not self._open_step.is_known):
            self._complete(last=True)
        self._early_end = EarlyEnd(self._loop_total, self._fingerprint())

    def _fingerprint(self) -> Fingerprint:
        """Return a fingerprint of the attached modules."""
        parts = [part.tensors()[0] for part in self._state.modules()]
        return fingerprint(local_of(tensor) for tensors in parts for tensor in tensors.values())

    def _complete(self, *, last: bool) -> None:
        """Count a complete step, judge its loss, and cross the boundary.

        Args:
            last: whether no step follows.
        """
        self._verification.end_step(self.step + 1)
        now = time.monotonic_ns()
        step = self.step + 1
        self.step = step
        if self._positions.any or self._losses.noted is not None:
            self._count(step)
        if step >= self._unsaved.due:
            self._unsaved.step_made(own=not self._in_loop)
        held_for = self._boundary.cross(step, now, last=last)
        self._boundary.end_quiet_at(step + 1 if self._positions.any else self._unsaved.due)
        if held_for is not None:
            self._kept_step = step
            if held_for != Why.STOP:
                self._verification.leave_copy_at_next_step()
            elif self._verification.should_make_another_step():
                self._snapshots.settle()
                self._verification.make_another_step(self._stop)
            else:
                self._stop()

    def _count(self, step: int) -> None:
        """Advance the data position, and judge the loss that was noted."""
        begin, end = NO_SPAN
        if self._positions.any:
            begin = self._page.consumed
            end = self._positions.advance()
            self._page.consumed = end
        if not self._positions.skippable:
            begin, end = NO_SPAN
        self._losses.judge(step, begin, end)

    def _keep_last(self) -> None:
        """Hold the last step for the saver, by the step's snapshot or by a snapshot that is taken now."""
        step = self.step
        self._snapshots.settle()
        if self._snapshots.newest != step and self._open_step.is_made:
            say(f"job.finish() saves no step {step}: an optimizer has stepped since, and no step_done() has followed")
            return
        self._boundary.keep_last(step)
        self._kept_step = step

    def _script_ends(self, ends_well: bool) -> None:
        """End the training as the interpreter ends, unless the job was told to stop. Runs in the main thread.

        Args:
            ends_well: whether the script ends without an error.
        """
        self._verification.leave_if_stopping()
        self._watcher.catch_up()  # a handler of the script's own may run before the watcher's thread
        if self.stop_requested and self._early_end is not None:
            # The script's own handler has got the signal as well, and has left the loop. The training has not ended.
            self._page.raise_flag(Flag.STOPPED)
        if self.stop_requested or (self._in_loop and not ends_well):
            return
        has_finished = bool(self._page.flags & Flag.LOOP_LEFT) and self._early_end is None  # by steps() or finish()
        if self._in_loop:  # the loop's generator was not closed, as with islice() over some of its steps
            self._early_end = EarlyEnd(self._loop_total, None)
            if self._open_step.is_made:
                self._complete(last=True)
        kept = self._keep_at_end() if ends_well and not has_finished else self._newest_in_memory()
        self._leave_loop()
        if has_finished:
            return
        if ends_well:
            self._coordinator.finish()
        if self._coordinator.rank == 0:
            early = self._early_end
            say(NO_FINISH.format(step=self.step, kept=kept) if early is None else early.sentence(self.step, kept))

    def _keep_at_end(self) -> str:
        """Hold the last step for the saver as the script ends. Return a clause that says what became of the step."""
        state_at_end = None if self._early_end is None else self._early_end.state
        is_snapshot_due = self.step not in (self._kept_step, self._snapshots.newest)
        if is_snapshot_due and state_at_end is not None and state_at_end != self._fingerprint():
            return (
                f"what is attached was changed since then, and its last step is not saved: {self._newest_in_memory()};"
                " job.finish() behind the loop saves it"
            )
        if self._kept_step != self.step:
            self._keep_last()
        return f"step {self.step} is saved" if self._kept_step == self.step else self._newest_in_memory()

    def _newest_in_memory(self) -> str:
        return f"step {self._snapshots.newest} is the newest in memory"

    def _stop(self) -> None:
        self._snapshots.settle()
        self._page.raise_flag(Flag.STOPPED)
        self._page.phase = Phase.TEARDOWN
        raise SystemExit(self._coordinator.leave())

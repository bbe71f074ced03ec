"""The public face of the hooks: attach() and the Job it returns."""

from __future__ import annotations

import math
import os
import platform
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import layout, skipped_samples
from ftlaunch_contract.pages.loss_record import NO_SPAN, parse_rule
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import RESTORED_FROM, Flag, Phase, Resume, Why
from ftlaunch_hooks.data.positions import Positions
from ftlaunch_hooks.job.coordinator import Coordinator
from ftlaunch_hooks.job.restore import restore
from ftlaunch_hooks.job.supervised import Supervised
from ftlaunch_hooks.observe.loss_watch import LossWatch
from ftlaunch_hooks.observe.replica_digests import ReplicaDigests
from ftlaunch_hooks.observe.step_timer import Stopwatch
from ftlaunch_hooks.observe.unsaved_state import UnsavedState
from ftlaunch_hooks.process import bootstrap
from ftlaunch_hooks.process.signal_watcher import Watcher
from ftlaunch_hooks.snapshots.interval import AdaptiveInterval
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.snapshots.step_schedule import BoundaryOrder, StepSchedule
from ftlaunch_hooks.standalone import standalone
from ftlaunch_hooks.state import generators
from ftlaunch_hooks.state.state import RankState, StateError
from ftlaunch_hooks.storage.saved_tensors import SavedTensors

_job: Job | None = None


class AttachError(RuntimeError):
    """attach() cannot do what was asked."""


def attach(*, frozen: Collection[str] = (), **objects: Any) -> Job:
    """Take part in the job: restore `objects` where an earlier attempt left them, and keep them safe.

    objects: under any name, anything with state_dict() and load_state_dict(): models (DDP-wrapped too), optimizers,
    schedulers, scalers, samplers; and random number generators. Generators among the caller's variables are saved
    without being given. frozen: names of objects that are never saved nor restored.
    Call it once, after everything is built. Raises StateError naming the argument that cannot be saved
    or does not fit what is restored, and AttachError.
    """
    global _job  # noqa: PLW0603 - one process is one rank
    if _job is not None:
        raise AttachError("cannot attach: attach() was called before in this process; keep the Job it returned")
    unknown = sorted(set(frozen) - set(objects))
    if unknown:
        raise AttachError(f"cannot attach: frozen names {unknown[0]!r}, which is none of {sorted(objects)}")
    page = bootstrap.own_page()
    coordinator: Coordinator = Supervised(page) if page is not None else standalone.join()
    _job = Job(objects, frozen, coordinator, generators.find(sys._getframe(1), objects))
    return _job


class Job:
    """This rank's part in the job."""

    def __init__(
        self, objects: dict[str, Any], frozen: Collection[str], coordinator: Coordinator, found: Mapping[str, Any]
    ) -> None:
        """Restore and take the first snapshot; use attach()."""
        self._coordinator, self._page = coordinator, coordinator.page
        self._watcher = Watcher(coordinator.on_term, coordinator.on_orphaned)
        ranks = coordinator.rank, coordinator.world_size, coordinator.peers
        self._state = RankState(objects, frozen, *ranks, found)
        self._positions = Positions(objects, frozen)
        kind, step = coordinator.resume()
        restored = self._restore(kind, step)
        self._skip_bad_data()
        self.step: int = 0 if kind == Resume.WEIGHTS else step  # of weights it is the step of the checkpoint
        self.attempt: int = coordinator.attempt
        self.restored_from: str | None = RESTORED_FROM.get(kind)
        self._in_loop = False
        self._began_ns = time.monotonic_ns()
        self._page.consumed = restored.consumed_samples if restored is not None else 0
        self._snapshots = Snapshotter(
            self._state,
            self._page,
            coordinator.peers,
            coordinator.memory_dir,
            coordinator.rank,
            _versions(),
            step if kind == Resume.MEMORY else NONE,
            coordinator.storage_slots,
        )
        self._watch = Stopwatch(self._page)
        self._losses = LossWatch(self._page, parse_rule(os.environ.get(protocol.ENV_SPIKE, "")))
        self._compare_replicas()
        self._pace, self._spent = AdaptiveInterval(*coordinator.memory_interval), (0.0, 0.0)
        self._schedule = StepSchedule(
            coordinator.rank, coordinator.peers, coordinator.orders, self._pace, self._snapshots.budget
        )
        self._begin(kind)
        self._unsaved = UnsavedState(objects, self._page, coordinator.rank)

    # --- what a script may ask ----------------------------------------------------------------------------

    @property
    def resumed(self) -> bool:
        """Whether the state came from an earlier attempt."""
        return self.restored_from is not None

    @property
    def stop_requested(self) -> bool:
        """Whether the job was told to stop; steps() ends it at the agreed step by itself."""
        return self._coordinator.orders.stop_at != NONE or self._page.stop_wanted != 0

    def steps(self, total: int) -> Iterator[int]:
        """Yield the number of each step still to be made, up to `total`; one pass of the loop is one step.

        Told to stop, it raises SystemExit with code 75 (checkpoint committed) at the agreed step. Raises StateError
        where another rank makes another number of steps: they would wait for each other without end.
        """
        self._enter()
        self._snapshots.budget.progress.intend(total)
        try:
            while self.step < total:
                yield self.step
                self._complete(last=self.step + 1 == total)
        finally:
            self._leave_loop()
        self._coordinator.finish()

    def step_done(self, loss: float | None = None) -> None:
        """Say that a step is complete, in a loop without steps(); within steps() only the loss is noted.

        loss: of this rank. A loss that is not finite is told to the supervisor at once: the script may raise next.
        """
        if loss is not None:
            self._page.loss = loss
            self._losses.note(self._page.loss)
            if self._in_loop and not math.isfinite(self._page.loss):
                span = (self._page.consumed, self._positions.ahead()) if self._positions.skippable else NO_SPAN
                self._losses.judge(self.step + 1, *span)
        if self._in_loop:
            return
        if self._page.phase == Phase.STARTUP:
            self._page.phase = Phase.TRAIN
        self._complete(last=False)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Say what the script does when it does not train: "eval", "checkpoint", "startup" or "teardown"."""
        try:
            phase = Phase[name.upper()]
        except KeyError:
            allowed = ", ".join(p.name.lower() for p in Phase)
            raise ValueError(f"cannot enter phase {name!r}: phases are {allowed}") from None
        before, self._page.phase = self._page.phase, phase
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

    # --- the beginning ------------------------------------------------------------------------------------

    def _restore(self, kind: Resume, step: int) -> SavedTensors | None:
        directory = self._coordinator.checkpoint_dir
        if kind == Resume.REFUSED:
            raise AttachError(
                f"cannot resume: no checkpoint in {directory} is usable (see its quarantine/); "
                f"{protocol.ENV_FRESH}=1 starts over"
            )
        try:
            restored = restore(self._state, kind, step, self._coordinator)
            if restored is not None:
                self._positions.check_ranks(restored.world_size, self._coordinator.world_size)
        except StateError as error:
            raise StateError(f"{error} (saved at step {step}); give --fresh to start over") from None
        return restored

    def _skip_bad_data(self) -> None:
        directory = self._coordinator.checkpoint_dir
        try:
            spans = skipped_samples.read(directory)
        except (OSError, ValueError) as error:
            raise AttachError(f"cannot read {directory / skipped_samples.NAME}: {error}") from error
        self._positions.skip(spans)

    def _compare_replicas(self) -> None:
        coordinator = self._coordinator
        every = int(os.environ.get(protocol.ENV_COMPARE_REPLICAS, "0"))
        if every and coordinator.world_size > 1:
            directory = coordinator.memory_dir if coordinator.rank == 0 else None
            self._snapshots.digests = ReplicaDigests(self._page, every, directory)

    def _begin(self, kind: Resume) -> None:
        """Take the first snapshot, unless the state comes from one, and tell that this rank is attached."""
        self._state.hold_structure()
        agreed = self._state.agree(self.step)
        self._snapshots.fit(self.step)
        self._page.set_resumed(kind, self.step)
        if agreed and kind != Resume.MEMORY:
            with self._coordinator.watched_lock:
                self._snapshots.take(self.step)
        self._spent = self._snapshots.spent, self._snapshots.laying_out
        self._page.beat(self.step, time.monotonic_ns())
        self._page.raise_flag(Flag.ATTACHED)
        self._schedule.write(self.step + 1)
        if not self._state.awaits_steps:
            self._state.restore_rng()  # for a script's own loop; steps() does it again

    # --- step by step -------------------------------------------------------------------------------------

    def _begin_training(self) -> None:
        self._state.restore_rng()  # not earlier: making a DataLoader's iterator draws from the generators
        self._page.phase = Phase.TRAIN
        self._began_ns = time.monotonic_ns()

    def _enter(self) -> None:
        self._begin_training()
        self._page.lower_flag(Flag.LOOP_LEFT)
        self._in_loop = self._state.in_steps = True
        self._coordinator.at_boundary(self.step)
        if NONE != self._coordinator.orders.stop_at <= self.step:  # attach() has taken the snapshot
            self._coordinator.held(self._snapshots, self.step, Why.STOP)
            self._stop()

    def _leave_loop(self) -> None:
        self._in_loop = False
        self._page.phase = Phase.TEARDOWN
        self._page.raise_flag(Flag.LOOP_LEFT)

    def _complete(self, *, last: bool) -> None:
        """The step boundary: snapshot, beat, and what rank 0 orders."""
        self._watch.end(time.monotonic_ns())
        step = self.step + 1
        self.step = step
        span = NO_SPAN
        if self._positions:
            span = self._page.consumed, self._positions.advance()
            self._page.consumed = span[1]
        self._losses.judge(step, *(span if self._positions.skippable else NO_SPAN))
        self._snapshots.trouble = self._losses.trouble
        self._snapshots.budget.progress.check_intents()
        self._coordinator.at_boundary(step)
        order = self._schedule.read(step)
        if last:
            order = replace(order, hold=Why.END)
        agreed = self._agree(step, order)
        with self._coordinator.watched_lock:
            taken = self._snapshots.boundary(step, agreed, self._schedule.write)
        now = time.monotonic_ns()
        self._page.step_seconds = seconds = (now - self._began_ns) / 1e9
        self._began_ns = now
        spent = self._snapshots.spent, self._snapshots.laying_out
        self._pace.note(seconds, spent[0] - self._spent[0], spent[1] - self._spent[1], taken)
        self._spent = spent
        self._page.beat(step, now)
        self._watch.begin(now)
        if order.hold is not None:
            self._coordinator.held(self._snapshots, step, order.hold)
        if order.hold == Why.STOP:
            self._stop()

    def _agree(self, step: int, order: BoundaryOrder) -> BoundaryOrder:
        """Agree with all ranks on what is replicated; the order is without a snapshot where there must be none."""
        if not (order.take or order.agree or order.hold is not None) or self._state.agree(step):
            return order
        if order.hold is not None:
            self._snapshots.budget.progress.missed(step)
        return replace(order, take=False, hold=None)

    def _stop(self) -> None:
        self._snapshots.settle()
        self._page.raise_flag(Flag.STOPPED)
        self._page.phase = Phase.TEARDOWN
        raise SystemExit(self._coordinator.leave())


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": torch.__version__, "layout": str(layout.VERSION)}

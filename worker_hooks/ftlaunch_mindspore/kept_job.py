"""Do what a MindSpore rank owes its job between two steps: beat, take snapshots, stop when told to.

ExceptionCheckpoint makes one KeptJob in each rank and calls it on the main thread, at step boundaries. All ranks act
at the same steps, by orders that they share through their pages.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from typing import Any

import mindspore as ms

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import Flag, Phase, Why
from ftlaunch_contract.saving_request import SavingRequest
from ftlaunch_hooks.job.coordinator import Coordinator
from ftlaunch_hooks.process.signal_watcher import Watcher
from ftlaunch_hooks.snapshots.interval import AdaptiveInterval
from ftlaunch_hooks.snapshots.step_schedule import BoundaryOrder, StepSchedule
from ftlaunch_mindspore.refusal import TrainingRefused
from ftlaunch_mindspore.saving import saved_step
from ftlaunch_mindspore.saving.slot import Groups
from ftlaunch_mindspore.saving.snapshots import MindSporeSnapshots

Collect = Callable[[], tuple[Groups, dict[str, Any]]]
"""Returns the state of this moment: its arrays, and its trees for common.json."""


class KeptJob:
    """A rank's side of a job, from its first step boundary to its last."""

    def __init__(self, coordinator: Coordinator, request: SavingRequest) -> None:
        """Find out at which step training begins, and read that step's state.

        Args:
            coordinator: who decides for this rank.
            request: when to save checkpoints and how many to keep, as the script asks.

        Raises:
            TrainingRefused: the step cannot be restored.
        """
        self._coordinator = coordinator
        self._page = coordinator.page
        self.rank = coordinator.rank
        self.world_size = coordinator.world_size
        self._watcher = Watcher(coordinator.on_term, coordinator.on_orphaned)
        self._kind, step = coordinator.resume()
        self.saved = saved_step.find(self._kind, step, coordinator)
        self.weights = saved_step.find_weights(self._kind, step, coordinator)
        self.step = self.saved.step if self.saved is not None else 0
        self._request = request
        self._pace = AdaptiveInterval(interval=coordinator.memory_interval.steps, auto=coordinator.memory_interval.auto)
        self._began_ns = time.monotonic_ns()

    def enter(self, collect: Collect, consumed: int, total: int) -> None:
        """Begin the loop: the state is restored, and the first step is about to begin. All ranks meet here.

        Args:
            collect: returns the state of the moment in which it is called.
            consumed: number of samples that this rank has taken from its data.
            total: number of steps after which this training ends.

        Raises:
            TrainingRefused: ranks ask for different checkpoints.
            SystemExit: the job has been told to stop at this step.
        """
        page = self._page
        coordinator = self._coordinator
        step = self.step
        self._collect = collect
        self._snapshots = MindSporeSnapshots(coordinator, step if self._kind.in_memory else NONE)
        self._schedule = StepSchedule(
            place=coordinator.node.place(coordinator.rank),
            peers=coordinator.peers,
            orders=coordinator.orders,
            pace=self._pace,
            budget=self._snapshots.budget,
        )
        if self._request.steps is not None:
            self._schedule.save_every(self._request.steps)
        coordinator.save_as(self._request)
        page.ask_saves(step, self._request)
        self._snapshots.fit(step, collect()[0])
        self._check_requests()
        page.consumed = consumed
        page.set_resumed(self._kind, step)
        if not self._kind.in_memory:
            self._take(None)
        page.beat(step, time.monotonic_ns())
        page.raise_flag(Flag.ATTACHED)
        self._schedule.write(step + 1)
        page.lower_flag(Flag.LOOP_LEFT)
        self._snapshots.budget.progress.intend(total)
        coordinator.at_boundary(step)
        if NONE != coordinator.orders.stop_at <= step:
            self._hold(Why.STOP)
            self._leave()
        self._began_ns = time.monotonic_ns()

    def step_made(self) -> None:
        """Record that a step was made. From the first one on, the time limits of a step apply."""
        if self._page.phase != Phase.TRAIN:
            self._page.phase = Phase.TRAIN

    def evaluates(self, begins: bool) -> None:
        """Record that an evaluation begins, or with begins=False that it is over."""
        self._page.phase = Phase.EVAL if begins else Phase.TRAIN

    def cross(self, step: int, consumed: int) -> None:
        """Cross the boundary after `step`: beat, and take the snapshot that is ordered for this step, if any.

        Args:
            step: number of completed steps.
            consumed: number of samples that this rank has taken from its data.

        Raises:
            SystemExit: the job stops here.
            TrainingRefused: another rank makes another number of steps, so that this one would wait for ever.
        """
        now = time.monotonic_ns()
        self.step = step
        self._page.consumed = consumed
        if self._coordinator.even and (why := self._snapshots.budget.progress.other_intent()) is not None:
            raise TrainingRefused(why)
        self._coordinator.at_boundary(step)
        lasted = now - self._began_ns
        if self._schedule.idle(step, now):
            self._began_ns = now
            self._pace.stepped(lasted)
            self._page.end_step(step, lasted, now)
            return
        order = self._schedule.read(step)
        if order.hold is not None:
            now += self._schedule.await_saver(step)  # neither the step's time nor the snapshot's includes this wait
        taken = self._follow(order)
        ended = time.monotonic_ns()
        self._pace.note(seconds=(ended - now + lasted) / 1e9, stalled=(ended - now) / 1e9, once=0.0, has_snapshot=taken)
        if order.asks:
            self._schedule.invalidate_order()
        self._page.end_step(step, lasted, ended)
        self._began_ns = ended
        if order.hold is not None:
            self._coordinator.held(self._snapshots, step, order.hold)
        if order.hold == Why.STOP:
            self._leave()

    def end(self) -> None:
        """End the job after the last step, which is saved."""
        self._page.beat(self.step, time.monotonic_ns())
        self._hold(Why.END)
        self._page.phase = Phase.TEARDOWN
        self._page.raise_flag(Flag.LOOP_LEFT)
        self._coordinator.finish()

    def _check_requests(self) -> None:
        """Raise TrainingRefused unless all ranks ask for the same checkpoints. Call it after a meeting of all ranks."""
        asked = {rank: peer.asked_saves for rank, peer in enumerate(self._coordinator.peers)}
        own = self._page.asked_saves
        for rank, theirs in asked.items():
            if theirs != own and not self._page.leave:
                raise TrainingRefused(
                    f"cannot keep this training: rank {rank} asks for {theirs}, and rank {self.rank} for {own}; give"
                    " ExceptionCheckpoint the same config on all ranks"
                )

    def _follow(self, order: BoundaryOrder) -> bool:
        """Carry out what is ordered for this boundary. Return whether a snapshot was taken."""
        if order.agree:
            self._snapshots.fit(self.step, self._collect()[0])
        self._schedule.write(self.step + 1)  # before the snapshot, so that no rank waits for it to learn the next order
        if order.hold is None and not order.snapshot:
            return False
        return self._take(order.hold, order.keep)

    def _take(self, hold: Why | None, keep: int = NONE) -> bool:
        """Take a snapshot of this moment (MindSporeSnapshots.take). Return whether it was written."""
        groups, trees = self._collect()
        common = {"consumed_samples": self._page.consumed, "versions": _versions(), "state": trees}
        with self._coordinator.watched_lock:
            return self._snapshots.take(step=self.step, groups=groups, common=common, hold=hold, keep=keep)

    def _hold(self, why: Why) -> None:
        """Have this step saved before the rank leaves: from the newest snapshot, or from one that is taken now."""
        self._schedule.await_saver(self.step)
        if self._snapshots.newest == self.step:
            self._page.hold_for_saver(self.step, why)
        else:
            self._take(why)
        self._coordinator.held(self._snapshots, self.step, why)

    def _leave(self) -> None:
        """Exit with the status by which the coordinator knows a rank that stopped as told."""
        self._page.raise_flag(Flag.STOPPED)
        self._page.phase = Phase.TEARDOWN
        raise SystemExit(self._coordinator.leave())


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), "mindspore": ms.__version__, "layout": str(layout.VERSION)}

"""A rank's part in a job of MindSpore's: what is done between two steps of its training."""

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
"""Gives the state of this moment: arrays, and the trees of common.json."""


class KeptJob:
    """Beats, takes snapshots, and stops where it is told to; at the same steps as the node's other ranks."""

    def __init__(self, coordinator: Coordinator, request: SavingRequest) -> None:
        """Find out where training begins. request: what is asked of whoever saves.

        Raises TrainingRefused.
        """
        self._coordinator, self._page = coordinator, coordinator.page
        self.rank, self.world_size = coordinator.rank, coordinator.world_size
        self._watcher = Watcher(coordinator.on_term, coordinator.on_orphaned)
        self._kind, step = coordinator.resume()
        self.saved = saved_step.find(self._kind, step, coordinator)
        self.weights = saved_step.find_weights(self._kind, step, coordinator)
        self.step = self.saved.step if self.saved is not None else 0
        self._request = request
        self._pace = AdaptiveInterval(*coordinator.memory_interval)
        self._began_ns = time.monotonic_ns()

    def enter(self, collect: Collect, consumed: int, total: int) -> None:
        """The state is restored, and the first step is about to begin. total: steps that this training is to make.

        All ranks meet here.
        """
        page, coordinator, step = self._page, self._coordinator, self.step
        self._collect = collect
        self._snapshots = MindSporeSnapshots(coordinator, step if self._kind.in_memory else NONE)
        self._schedule = StepSchedule(
            coordinator.node.place(coordinator.rank), coordinator.peers, coordinator.orders, self._pace,
            self._snapshots.budget,
        )  # fmt: skip
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
        """A step is over, and what belongs to it goes on: from the first one on the limits of a step hold."""
        if self._page.phase != Phase.TRAIN:
            self._page.phase = Phase.TRAIN

    def evaluates(self, begins: bool) -> None:
        """An evaluation begins, or is over."""
        self._page.phase = Phase.EVAL if begins else Phase.TRAIN

    def cross(self, step: int, consumed: int) -> None:
        """`step` steps are complete. Raises SystemExit where the job stops here.

        Raises TrainingRefused where another rank is to make another number of steps, and nobody would end this one.
        """
        now = time.monotonic_ns()
        self.step, self._page.consumed = step, consumed
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
            now += self._schedule.await_saver(step)  # what a step takes, and a snapshot, is without it
        taken = self._follow(order)
        ended = time.monotonic_ns()
        self._pace.note((ended - now + lasted) / 1e9, (ended - now) / 1e9, 0.0, taken)
        if order.asks:
            self._schedule.decide_anew()
        self._page.end_step(step, lasted, ended)
        self._began_ns = ended
        if order.hold is not None:
            self._coordinator.held(self._snapshots, step, order.hold)
        if order.hold == Why.STOP:
            self._leave()

    def end(self) -> None:
        """Training is over: its last step is saved."""
        self._page.beat(self.step, time.monotonic_ns())
        self._hold(Why.END)
        self._page.phase = Phase.TEARDOWN
        self._page.raise_flag(Flag.LOOP_LEFT)
        self._coordinator.finish()

    def _check_requests(self) -> None:
        """Behind a meeting of all ranks. Raises TrainingRefused unless all of them ask for the same."""
        asked = {rank: peer.asked_saves for rank, peer in enumerate(self._coordinator.peers)}
        own = self._page.asked_saves
        for rank, theirs in asked.items():
            if theirs != own and not self._page.leave:
                raise TrainingRefused(
                    f"cannot keep this training: rank {rank} asks for {theirs}, and rank {self.rank} for {own}; give"
                    " ExceptionCheckpoint the same config on all ranks"
                )

    def _follow(self, order: BoundaryOrder) -> bool:
        """Do what is ordered for this boundary; returns whether a snapshot was taken."""
        if order.agree:
            self._snapshots.fit(self.step, self._collect()[0])
        self._schedule.write(self.step + 1)  # before the snapshot: no rank waits for this one's to learn what comes
        if order.hold is None and not order.take:
            return False
        return self._take(order.hold, order.keep)

    def _take(self, hold: Why | None, keep: int = NONE) -> bool:
        groups, trees = self._collect()
        common = {"consumed_samples": self._page.consumed, "versions": _versions(), "state": trees}
        with self._coordinator.watched_lock:
            return self._snapshots.take(self.step, groups, common, hold, keep)

    def _hold(self, why: Why) -> None:
        """No step follows: what the newest snapshot holds, or one that is taken now, is saved."""
        self._schedule.await_saver(self.step)
        if self._snapshots.newest == self.step:
            self._page.hold_for_saver(self.step, why)
        else:
            self._take(why)
        self._coordinator.held(self._snapshots, self.step, why)

    def _leave(self) -> None:
        self._page.raise_flag(Flag.STOPPED)
        self._page.phase = Phase.TEARDOWN
        raise SystemExit(self._coordinator.leave())


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), "mindspore": ms.__version__, "layout": str(layout.VERSION)}

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
from ftlaunch_hooks.job.coordinator import Coordinator
from ftlaunch_hooks.process.signal_watcher import Watcher
from ftlaunch_hooks.snapshots.interval import AdaptiveInterval
from ftlaunch_mindspore.saving import saved_step
from ftlaunch_mindspore.saving.snapshots import Groups, MindSporeSnapshots

Collect = Callable[[], tuple[Groups, dict[str, Any]]]
"""Gives the state of this moment: arrays, and the trees of common.json."""


class KeptJob:
    """Beats, takes snapshots, and stops where it is told to."""

    def __init__(self, coordinator: Coordinator, save_every: int | None) -> None:
        """Find out where training begins. save_every: steps between checkpoints, asked of a supervisor.

        Raises TrainingRefused.
        """
        self._coordinator, self._page = coordinator, coordinator.page
        self._watcher = Watcher(coordinator.on_term, coordinator.on_orphaned)
        self._kind, step = coordinator.resume()
        self.saved = saved_step.find(self._kind, step, coordinator)
        self.step = self.saved.step if self.saved is not None else 0
        self._save_every = save_every
        self._pace = AdaptiveInterval(*coordinator.memory_interval)
        self._served = NONE
        self._began_ns = time.monotonic_ns()

    def enter(self, collect: Collect, consumed: int) -> None:
        """The state is restored, and the first step is about to begin."""
        page, coordinator = self._page, self._coordinator
        base = self.step if self._kind.in_memory else NONE
        self._snapshots = MindSporeSnapshots(
            page, coordinator.memory_dir, coordinator.rank, coordinator.storage_slots, base
        )
        self._collect = collect
        self._snapshots.fit(collect()[0], self._pace.interval)
        page.consumed = consumed
        page.set_resumed(self._kind, self.step)
        if base == NONE:
            self._take(None)
        page.beat(self.step, time.monotonic_ns())
        page.raise_flag(Flag.ATTACHED)
        page.lower_flag(Flag.LOOP_LEFT)
        coordinator.at_boundary(self.step)
        if NONE != coordinator.orders.stop_at <= self.step:
            self._stop_here()
        self._began_ns = time.monotonic_ns()

    def step_made(self) -> None:
        """A step is over, and what belongs to it goes on: from the first one on the limits of a step hold."""
        if self._page.phase != Phase.TRAIN:
            self._page.phase = Phase.TRAIN

    def evaluates(self, begins: bool) -> None:
        """An evaluation begins, or is over."""
        self._page.phase = Phase.EVAL if begins else Phase.TRAIN

    def cross(self, step: int, consumed: int) -> None:
        """`step` steps are complete. Raises SystemExit where the job stops here."""
        now = time.monotonic_ns()
        lasted, self._began_ns = now - self._began_ns, now
        self.step, self._page.consumed = step, consumed
        self._coordinator.at_boundary(step)
        hold = self._hold(step)
        if self._save_every and step % self._save_every == 0:
            self._page.want_save = step
        every = self._pace.interval
        if hold is None and not (every and step % every == 0):
            self._pace.stepped(lasted)
            self._page.end_step(step, lasted, now)
            return
        taken = self._take(hold)
        ended = time.monotonic_ns()
        self._pace.note((ended - now + lasted) / 1e9, (ended - now) / 1e9, 0.0, taken)
        self._page.end_step(step, lasted, ended)
        self._began_ns = ended
        if hold is not None and taken:
            self._coordinator.held(self._snapshots, step, hold)
        if hold == Why.STOP:
            self._leave()

    def end(self) -> None:
        """Training is over: its last step is saved."""
        self._page.beat(self.step, time.monotonic_ns())
        if self._take(Why.END):
            self._coordinator.held(self._snapshots, self.step, Why.END)
        self._page.phase = Phase.TEARDOWN
        self._page.raise_flag(Flag.LOOP_LEFT)
        self._coordinator.finish()

    def _hold(self, step: int) -> Why | None:
        orders = self._coordinator.orders
        if NONE != orders.stop_at <= step:
            return Why.STOP
        if NONE != orders.persist_at <= step and orders.persist_at != self._served:
            self._served = orders.persist_at
            return Why.INTERVAL
        return None

    def _take(self, hold: Why | None) -> bool:
        groups, trees = self._collect()
        common = {"consumed_samples": self._page.consumed, "versions": _versions(), "state": trees}
        with self._coordinator.watched_lock:
            taken = self._snapshots.take(self.step, groups, common, hold)
        if hold is not None and not taken:
            self._snapshots.missed(self.step)
        return taken

    def _stop_here(self) -> None:
        """Told to stop before the first step: what was restored, or made, is saved."""
        if self._take(Why.STOP):
            self._coordinator.held(self._snapshots, self.step, Why.STOP)
        self._leave()

    def _leave(self) -> None:
        self._page.raise_flag(Flag.STOPPED)
        self._page.phase = Phase.TEARDOWN
        raise SystemExit(self._coordinator.leave())


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), "mindspore": ms.__version__, "layout": str(layout.VERSION)}

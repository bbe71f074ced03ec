"""The boundary between two steps: either nothing is asked of it, or the ranks follow an order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from ftlaunch_contract.checkpoint.metadata import Trainings
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_contract.protocol import Resume, Why
from ftlaunch_contract.saving_request import SavingRequest
from ftlaunch_hooks.job.coordinator import Coordinator
from ftlaunch_hooks.observe.loss_watch import LossWatch
from ftlaunch_hooks.observe.step_timer import Stopwatch
from ftlaunch_hooks.snapshots.interval import AdaptiveInterval
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.snapshots.step_schedule import BoundaryOrder, StepSchedule
from ftlaunch_hooks.state.state import RankState, StateError

_PATIENCE_SECONDS = 30.0


class Boundary:
    """What a rank does between two steps: it beats, and does what all ranks are ordered to do."""

    def __init__(
        self,
        coordinator: Coordinator,
        state: RankState,
        snapshots: Snapshotter,
        watch: Stopwatch,
        losses: LossWatch,
        before_snapshot: Callable[[int], None],
    ) -> None:
        """Before the first step; the state is restored. before_snapshot: called with a step whose snapshot is taken."""
        self._coordinator, self._page = coordinator, coordinator.page
        self._state, self._snapshots, self._watch, self._losses = state, snapshots, watch, losses
        self._before_snapshot = before_snapshot
        self._even, self._progress = coordinator.even, snapshots.budget.progress
        self._pace = AdaptiveInterval(*coordinator.memory_interval)
        node = coordinator.node
        self._schedule = StepSchedule(
            node.place(coordinator.rank),
            coordinator.peers,
            coordinator.orders,
            self._pace,
            snapshots.budget,
            common=not node.whole_job,
        )
        self._spent = 0.0, 0.0
        self._began_ns = time.monotonic_ns()
        self._quiet_before = self._quiet_until_ns = 0  # see cross_quietly

    def open(self, step: int, kind: Resume) -> None:
        """attach() has restored `step` from `kind`: agree with all ranks, take a snapshot if there is none."""
        agreed = self._state.agree(step)
        self._snapshots.fit(step)
        self._page.set_resumed(kind, step)
        if agreed and not kind.in_memory:
            self._take(step)
        self._spent = self._snapshots.spent, self._snapshots.laying_out

    def turn_to(self, state: RankState, trainings: Trainings, step: int) -> None:
        """Another training begins with `step`: meet all ranks there, and take the first snapshot of its state."""
        self._state, self._quiet_before = state, 0
        self._snapshots.turn_to(state, trainings)
        self._page.beat(step, time.monotonic_ns())
        peers = self._coordinator.peers
        wait_until(lambda: self._page.leave or all(peer.step >= step for peer in peers), math.inf)
        agreed = state.agree(step)
        self._snapshots.fit(step)
        if agreed:
            self._take(step)
        self._schedule.decide_anew()
        self.announce(step + 1)

    def _take(self, step: int) -> None:
        with self._coordinator.watched_lock:
            self._snapshots.take(step)

    def await_saver(self, step: int) -> None:
        """Before `step` is held as the last one: wait for what the script has asked to be saved before it."""
        self._schedule.await_saver(step)

    def keep_last(self, step: int) -> None:
        """All ranks behind their loops, at `step`: take its snapshot, to be saved as the end of the training.

        A rank that has left its loop by itself, as no other does, must not wait for these without end.
        """
        self._snapshots.trouble = self._losses.trouble
        if self._state.agree(step, _PATIENCE_SECONDS):
            with self._coordinator.watched_lock:
                self._snapshots.take(step, Why.END)
        else:
            self._progress.missed(step)

    def announce(self, step: int) -> None:
        """The node's first rank: write the first order, for `step`."""
        self._schedule.write(step)

    def ask_saves(self, step: int, request: SavingRequest) -> None:
        """All ranks at the boundary of `step`: have what follows saved as the script asks, from `step` + 1 on.

        The ranks of the node meet here, as the order for the next step is written already, and must be written anew
        before any of them reads it. Raises StateError where another rank asks for something else.
        """
        node, peers, page = self._coordinator.node, self._coordinator.peers, self._page
        leads = node.place(self._coordinator.rank) == 0
        if request.steps is not None:
            self._schedule.save_every(request.steps, request.ahead)
        if request.memory_steps is not None:
            self._schedule.keep_interval(request.memory_steps)
        self._coordinator.save_as(request)
        if leads:
            others = [peer for place, peer in enumerate(peers) if place]
            wait_until(lambda: page.leave or all(self._has_asked(peer, step) for peer in others), math.inf)
            self._schedule.write(step + 1)
        page.ask_saves(step, request)
        wait_until(lambda: page.leave or all(self._has_asked(peer, step) for peer in peers), math.inf)
        for rank, peer in zip(node.ranks, peers, strict=True):
            if not page.leave and peer.asked_saves != page.asked_saves:
                raise StateError(
                    f"cannot save as asked: rank {rank} asks for {peer.asked_saves}, and this rank for"
                    f" {page.asked_saves}; all ranks must ask for the same"
                )

    def _has_asked(self, peer: Page, step: int) -> bool:
        return peer.attempt == self._page.attempt and peer.saves_asked >= step

    def begin(self, now_ns: int) -> None:
        """The first step of a loop begins."""
        self._began_ns = now_ns

    def cross_quietly(self, step: int) -> bool:
        """Cross the boundary of `step` at once, where it is known that there is nothing to be done and nothing to see.

        Only a rank without peers ever knows. False: nothing has happened, `cross` does it.
        """
        now_ns = time.monotonic_ns()
        if step >= self._quiet_before or now_ns >= self._quiet_until_ns:
            return False
        self._page.end_step(step, now_ns - self._began_ns, now_ns)
        self._began_ns = now_ns
        return True

    def be_heard(self, step: int) -> None:
        """Cross no boundary quietly from `step` on: somebody else has to do something there."""
        self._quiet_before = min(self._quiet_before, step)

    def cross(self, step: int, now_ns: int, *, last: bool) -> Why | None:
        """`step` is complete, since `now_ns`: returns why its snapshot is held for the saver, if it is.

        last: of the script's loop. An ordinary boundary is crossed with the processor's caches full of the training:
        what is not looked at here is what makes it cheap.
        """
        self._watch.turn(now_ns)
        if self._even and (why := self._progress.other_intent()) is not None:
            raise StateError(why)
        self._coordinator.at_boundary(step)
        if last or not self._schedule.idle(step, now_ns):
            return self._follow(step, last=last)
        lasted = now_ns - self._began_ns
        self._began_ns = now_ns
        self._pace.stepped(lasted)
        self._page.end_step(step, lasted, now_ns)
        self._quiet_before, self._quiet_until_ns = self._schedule.quiet(now_ns + self._coordinator.patience_ns)
        return None

    def _follow(self, step: int, *, last: bool) -> Why | None:
        """Read the order, and follow it."""
        self._quiet_before = 0
        order = self._schedule.read(step)
        if last:
            order = replace(order, hold=Why.END)
        if order.hold is not None:
            self._began_ns += self._schedule.await_saver(step)
        self._snapshots.trouble = self._losses.trouble
        agreed = self._agree(step, order)
        if agreed.take or agreed.hold is not None:
            self._before_snapshot(step)
        with self._coordinator.watched_lock:
            taken = self._snapshots.boundary(step, agreed, self._schedule.write)
        now = time.monotonic_ns()
        self._note(now - self._began_ns, taken=taken)
        if order.asks:
            self._schedule.decide_anew()
        self._page.end_step(step, now - self._began_ns, now)
        self._began_ns = now
        self._watch.begin(now)
        if order.hold is not None:
            self._coordinator.held(self._snapshots, step, order.hold)
        return order.hold

    def _note(self, lasted: int, *, taken: bool) -> None:
        spent = self._snapshots.spent, self._snapshots.laying_out
        stalled, once = spent[0] - self._spent[0], spent[1] - self._spent[1]
        self._spent = spent
        self._pace.note(lasted / 1e9, stalled, once, taken)

    def _agree(self, step: int, order: BoundaryOrder) -> BoundaryOrder:
        """Agree with all ranks on what is replicated; the order is without a snapshot where there must be none."""
        if not order.asks:
            return order
        began = time.perf_counter()
        whole = self._state.agree(step)
        self._snapshots.spent += time.perf_counter() - began  # it collects the state for the snapshot
        if whole:
            return order
        self._snapshots.tell_who_left(step)
        if order.hold is not None:
            self._progress.missed(step)
        return replace(order, take=False, hold=None)

"""Does a rank's work between two steps: mostly next to nothing, otherwise what all ranks were ordered to do.

The Job calls a Boundary in the thread that trains, and so does the KeptJob of a rank that trains with MindSpore. So
nothing here imports torch. The orders come from the node's first rank (step_schedule.py) and from the coordinator.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_contract.protocol import Resume, Why
from ftlaunch_contract.saving_request import SavingRequest
from ftlaunch_hooks.job.coordinator import Coordinator
from ftlaunch_hooks.snapshots.interval import AdaptiveInterval
from ftlaunch_hooks.snapshots.rank_snapshots import RankSnapshots
from ftlaunch_hooks.snapshots.step_schedule import BoundaryOrder, StepSchedule
from ftlaunch_hooks.tensors.state_error import StateError

_PATIENCE_SECONDS = 30.0


class ReplicatedState(Protocol):
    """The state of which ranks hold equal parts: RankState for torch, OwnState for MindSpore."""

    def agree(self, step: int, patience_seconds: float = math.inf) -> bool:
        """Agree with all ranks at the boundary of `step` on what all of them hold; one rank saves each of these.

        Args:
            step: the boundary, at which every rank calls this.
            patience_seconds: how long to wait for a rank that does not come.

        Returns:
            Whether this rank is to take a snapshot of `step`.

        Raises:
            StateError: the ranks hold different states.
        """


class StepWatch(Protocol):
    """Measures the time of steps: Stopwatch for torch, NoWatch for MindSpore. Times are of time.monotonic_ns."""

    def turn(self, now_ns: int) -> None:
        """End a step, and begin the next."""

    def begin(self, now_ns: int) -> None:
        """Restart the step under way at `now_ns`, because the rank has waited until now."""


class Boundary:
    """Writes a rank's heartbeat at each step boundary, and follows the orders for that boundary."""

    def __init__(
        self,
        coordinator: Coordinator,
        state: ReplicatedState,
        snapshots: RankSnapshots[Any, Any],
        watch: StepWatch,
        before_snapshot: Callable[[int], None],
    ) -> None:
        """Prepare, before the first step.

        Args:
            coordinator: decides for this rank.
            state: the rank's state, which is restored already.
            snapshots: takes the snapshots.
            watch: measures the time of steps.
            before_snapshot: called with a step just before the snapshot of this step is taken.
        """
        self._coordinator = coordinator
        self._page = coordinator.page
        self._state = state
        self._snapshots = snapshots
        self._watch = watch
        self._before_snapshot = before_snapshot
        self._even = coordinator.even
        self._progress = snapshots.budget.progress
        self._pace = AdaptiveInterval(
            interval=coordinator.memory_interval.steps,
            auto=coordinator.memory_interval.auto,
        )
        snapshots.prepares_slots = coordinator.memory_interval.steps > 0
        node = coordinator.node
        self._schedule = StepSchedule(
            place=node.place(coordinator.rank),
            peers=coordinator.peers,
            orders=coordinator.orders,
            pace=self._pace,
            budget=snapshots.budget,
            common=not node.whole_job,
        )
        self._seen_spent = 0.0  # seconds of snapshots that were noted already
        self._seen_laying_out = 0.0  # seconds of laying out slots that were noted already
        self._began_ns = time.monotonic_ns()  # when the step under way began
        # Until this step and this time, whichever comes first, boundaries need no work (`cross_quietly`).
        self._quiet_before = 0
        self._quiet_until_ns = 0

    def open(self, step: int, kind: Resume) -> None:
        """Agree with all ranks before the first step, and take a snapshot if none is in memory.

        Args:
            step: the step that was restored.
            kind: where the state came from.

        Raises:
            StateError: the ranks hold different states.
        """
        agreed = self._state.agree(step)
        self._snapshots.fit(step)
        self._page.set_resumed(kind, step)
        if agreed and not kind.in_memory:
            self._capture(step)
        self._seen_spent = self._snapshots.spent
        self._seen_laying_out = self._snapshots.laying_out

    def turn_to(self, state: ReplicatedState, step: int) -> None:
        """Begin a further training: meet all ranks, and take the first snapshot of its state.

        Args:
            state: the state of the further training, of which the snapshots are now.
            step: the step at which the further training begins.

        Raises:
            StateError: the ranks hold different states.
        """
        self._state = state
        self._quiet_before = 0
        self._page.beat(step, time.monotonic_ns())
        peers = self._coordinator.peers
        wait_until(lambda: self._page.leave or all(peer.step >= step for peer in peers), math.inf)
        agreed = state.agree(step)
        self._snapshots.fit(step)
        if agreed:
            self._capture(step)
        self._schedule.invalidate_order()
        self.announce(step + 1)

    def _capture(self, step: int, hold: Why | None = None) -> None:
        with self._coordinator.watched_lock:
            self._snapshots.capture(step, hold)

    def await_saver(self, step: int) -> None:
        """Wait until the saver has saved what the script asked for before `step`, the last step to be held."""
        self._schedule.await_saver(step)

    def keep_last(self, step: int, why: Why = Why.END) -> None:
        """Hold `step` for the saver, by its snapshot or by one that is taken now. No step follows in this training.

        All ranks call this, but the wait for the other ranks is limited, because a rank may be the only one that has
        left its loop.

        Args:
            step: the last step.
            why: why no step follows.
        """
        self._snapshots.settle()
        self.await_saver(step)
        if self._snapshots.newest == step:
            self._page.hold_for_saver(step, why)
        elif self._state.agree(step, _PATIENCE_SECONDS):
            self._capture(step, why)
        else:
            self._progress.missed(step)
        self._coordinator.held(self._snapshots, step, why)

    def announce(self, step: int) -> None:
        """Write the order for `step`, the first one, if this is the node's first rank."""
        self._schedule.write(step)

    def ask_saves(self, step: int, request: SavingRequest) -> None:
        """Save as the script asks, from the step after `step` on. All ranks call this at the boundary of `step`.

        The ranks of the node meet here: the order for the next step is written already, and must be written again
        before a rank reads it.

        Args:
            step: the step that was completed last.
            request: the script's request.

        Raises:
            StateError: another rank of the node asks for something else.
        """
        node = self._coordinator.node
        peers = self._coordinator.peers
        page = self._page
        leads = node.place(self._coordinator.rank) == 0
        if request.steps is not None:
            self._schedule.save_every(request.steps, request.ahead)
        if request.memory_steps is not None:
            self._schedule.keep_interval(request.memory_steps)
            self._snapshots.prepares_slots = request.memory_steps > 0
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
        """Begin the time of the first step of a loop at `now_ns` (time.monotonic_ns)."""
        self._began_ns = now_ns

    def cross_quietly(self, step: int) -> bool:
        """Cross the boundary of `step` at once, if it is known that there is no work and no new order.

        Only a rank without peers ever knows that.

        Returns:
            Whether the boundary was crossed; if not, nothing has happened, and the caller must call `cross`.
        """
        now_ns = time.monotonic_ns()
        if step >= self._quiet_before or now_ns >= self._quiet_until_ns:
            return False
        self._page.end_step(step, now_ns - self._began_ns, now_ns)
        self._began_ns = now_ns
        return True

    def end_quiet_at(self, step: int) -> None:
        """Cross no boundary quietly from `step` on, because another part of the hooks has work there."""
        self._quiet_before = min(self._quiet_before, step)

    def cross(self, step: int, now_ns: int, *, last: bool) -> Why | None:
        """Cross the boundary of `step`.

        The processor's caches are full of the training's data here: an ordinary boundary is cheap because it touches
        little memory.

        Args:
            step: the completed step.
            now_ns: when the step was complete (time.monotonic_ns).
            last: whether this is the last step of the script's loop.

        Returns:
            Why the step's snapshot is held for the saver; None if it is not held.

        Raises:
            StateError: another rank is going to make another number of steps, or the state cannot be saved.
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
        """Read the order for `step` and follow it. Return why the snapshot is held for the saver, or None."""
        self._quiet_before = 0
        order = self._schedule.read(step)
        if last:
            order = replace(order, hold=Why.END)
        if order.hold is not None:
            self._began_ns += self._schedule.await_saver(step)
        agreed = self._agree(step, order)
        if agreed.snapshot or agreed.hold is not None:
            self._before_snapshot(step)
        with self._coordinator.watched_lock:
            captured = self._snapshots.follow(step, agreed, self._schedule.write)
        now = time.monotonic_ns()
        self._note(now - self._began_ns, captured=captured)
        if order.asks:
            self._schedule.invalidate_order()
        self._page.end_step(step, now - self._began_ns, now)
        self._began_ns = now
        self._watch.begin(now)
        if order.hold is not None:
            self._coordinator.held(self._snapshots, step, order.hold)
        return order.hold

    def _note(self, lasted: int, *, captured: bool) -> None:
        """Tell the adaptive interval about the step: how long it lasted (ns), and what its snapshot has cost."""
        stalled = self._snapshots.spent - self._seen_spent
        once = self._snapshots.laying_out - self._seen_laying_out
        self._seen_spent = self._snapshots.spent
        self._seen_laying_out = self._snapshots.laying_out
        self._pace.note(seconds=lasted / 1e9, stalled=stalled, once=once, has_snapshot=captured)

    def _agree(self, step: int, order: BoundaryOrder) -> BoundaryOrder:
        """Agree with all ranks on the replicated state.

        Returns:
            The order, without a snapshot if the ranks could not agree because a rank has left.
        """
        if not order.asks:
            return order
        began = time.perf_counter()
        whole = self._state.agree(step)
        self._snapshots.spent += time.perf_counter() - began  # it collects the state for the snapshot
        if whole:
            return order
        self._snapshots.warn_of_leaver(step)
        if order.hold is not None:
            self._progress.missed(step)
        return replace(order, snapshot=False, hold=None)

"""Do what a MindSpore rank owes its job between two steps: beat, take snapshots, stop when told to.

ExceptionCheckpoint makes one KeptJob in each rank and calls it on the main thread, at step boundaries. All ranks act
at the same steps, by orders that they share through their pages.
"""

from __future__ import annotations

import contextlib
import math
import platform
import time
from collections.abc import Iterator

import mindspore as ms

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import Flag, Phase, Why
from ftlaunch_contract.saving_request import SavingRequest
from ftlaunch_hooks.job.boundary import Boundary
from ftlaunch_hooks.job.coordinator import Coordinator
from ftlaunch_hooks.process.signal_watcher import Watcher
from ftlaunch_hooks.tensors.state_error import StateError
from ftlaunch_mindspore.refusal import TrainingRefused
from ftlaunch_mindspore.saving import saved_step
from ftlaunch_mindspore.saving.snapshots import Collect, MindSporeSnapshots


class OwnState:
    """The ReplicatedState of a rank that saves all it holds, whatever other ranks hold."""

    def agree(self, step: int, patience_seconds: float = math.inf) -> bool:
        """Return True: there is nothing to agree on."""
        return True


class NoWatch:
    """The StepWatch of a rank whose steps are not divided into its own part and waiting for others."""

    def turn(self, now_ns: int) -> None:
        """Do nothing."""

    def begin(self, now_ns: int) -> None:
        """Do nothing."""


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
        self._snapshots = MindSporeSnapshots(
            coordinator,
            collect=collect,
            versions={"python": platform.python_version(), "mindspore": ms.__version__, "layout": str(layout.VERSION)},
            base=step if self._kind.in_memory else NONE,
        )
        self._boundary = Boundary(
            coordinator,
            state=OwnState(),
            snapshots=self._snapshots,
            watch=NoWatch(),
            before_snapshot=lambda step: None,
        )
        page.consumed = consumed
        self._boundary.open(step, self._kind)
        page.beat(step, time.monotonic_ns())
        page.raise_flag(Flag.ATTACHED)
        self._boundary.announce(step + 1)
        with _refusing("give ExceptionCheckpoint the same config on all ranks"):
            self._boundary.ask_saves(step, self._request)
        page.lower_flag(Flag.LOOP_LEFT)
        self._snapshots.budget.progress.intend(total)
        coordinator.at_boundary(step)
        if NONE != coordinator.orders.stop_at <= step:
            self._boundary.keep_last(step, Why.STOP)
            self._leave()
        self._boundary.begin(time.monotonic_ns())

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
        self.step = step
        self._page.consumed = consumed
        with _refusing():
            held_for = self._boundary.cross(step, time.monotonic_ns(), last=False)
        if held_for == Why.STOP:
            self._leave()

    def end(self) -> None:
        """End the job after the last step, which is saved."""
        self._page.beat(self.step, time.monotonic_ns())
        self._boundary.keep_last(self.step)
        self._page.phase = Phase.TEARDOWN
        self._page.raise_flag(Flag.LOOP_LEFT)
        self._coordinator.finish()

    def _leave(self) -> None:
        """Exit with the status by which the coordinator knows a rank that stopped as told."""
        self._page.raise_flag(Flag.STOPPED)
        self._page.phase = Phase.TEARDOWN
        raise SystemExit(self._coordinator.leave())


@contextlib.contextmanager
def _refusing(advice: str = "") -> Iterator[None]:
    """Raise TrainingRefused where the ranks cannot go on together. advice: what the user may do, if known."""
    try:
        yield
    except StateError as error:
        raise TrainingRefused(f"{error}; {advice}" if advice else str(error)) from None

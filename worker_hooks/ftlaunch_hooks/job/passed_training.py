"""Restores a training that the job has completed, in a process that resumes in a later training.

attach() returns a PassedTraining for such a training. The attached objects get the state of the training's end, and the
script makes no step. All calls come from the thread that trains.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from types import FrameType
from typing import Any, NoReturn

from torch.utils.data import DataLoader

from ftlaunch_contract.checkpoint.metadata import Trainings
from ftlaunch_contract.protocol import RESTORED_FROM, Resume
from ftlaunch_contract.saving_request import SavingRequest
from ftlaunch_hooks.job.coordinator import Coordinator
from ftlaunch_hooks.job.epoch_loop import Batches
from ftlaunch_hooks.job.job import Job
from ftlaunch_hooks.job.restore import AttachError, restore
from ftlaunch_hooks.job.trainings import end_directory, name_of
from ftlaunch_hooks.observe.step_timer import Stopwatch
from ftlaunch_hooks.observe.unsaved.survey import Survey
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.state.state import Choices


class PassedTraining(Job):
    """The Job of a training that has ended in an earlier attempt."""

    def __init__(  # Job.__init__ is not called: snapshots hold the state of the later training
        self,
        objects: dict[str, Any],
        choices: Choices,
        coordinator: Coordinator,
        found: Mapping[str, Any],
        trainings: Trainings,
        end: int,
    ) -> None:
        """Restore the state of the training's end from storage.

        Args:
            objects: attached objects by name.
            choices: the options of attach().
            coordinator: this rank's coordinator.
            found: generators among the caller's variables.
            trainings: the trainings of this process up to this one.
            end: the last step of this training.

        Raises:
            AttachError: the state of the end is gone.
            StateError: the state does not fit the objects.
            Damaged: the state cannot be read.
        """
        self._coordinator = coordinator
        self._page = coordinator.page
        self._trainings = trainings
        self.step = end
        self._stopwatch = Stopwatch(self._page, compared=False)
        directory = end_directory(trainings, end, coordinator)
        self._hold_objects(objects, choices, found)
        restore(self._state, self._positions, kind=Resume.STORAGE, step=self.step, coordinator=coordinator)
        self._variables = Survey(objects, choices, self._state)
        self.attempt = coordinator.attempt
        self.restored_from = RESTORED_FROM[Resume.STORAGE]
        self.from_other_job = False
        if coordinator.rank == 0:
            say(
                f"{name_of(trainings)} of this process has ended at step {self.step}: it is put back from {directory},"
                " and the job goes on in a later one"
            )
        if not self._state.awaits_steps:
            self._state.restore_rng()

    @property
    def is_over(self) -> bool:
        """True, because the training's last step is kept already."""
        return True

    def steps(self, total: int) -> Generator[int]:
        """Yield no step. If `total` is beyond the end, yield one step, and refuse that the script completes it.

        An adapter may not know the number of its steps before it ends the loop.

        Raises:
            AttachError: the script has made the step.
        """
        self._variables.begin(sys._getframe())
        self._state.restore_rng()
        if total > self.step:
            yield self.step
            self._refuse_step()

    def epochs(self, total: int) -> Generator[int]:
        """Yield no epoch."""
        self._state.restore_rng()
        yield from ()

    def batches(self, loader: DataLoader[Any]) -> Batches:
        """Refuse. Raises AttachError, because each batch would be a step."""
        self._refuse_step()

    def ask_saves(self, request: SavingRequest) -> dict[str, str]:
        """Ask for nothing, because no step is made that could be saved."""
        return {}

    def step_done(self, loss: float | None = None) -> None:
        """Refuse. Raises AttachError, because the training has ended."""
        self._refuse_step()

    def _refuse_step(self) -> NoReturn:
        raise AttachError(
            f"cannot resume: {name_of(self._trainings)} of this process had ended at step {self.step} when the job"
            " went on to the next one, and now it makes a step more; start it with the settings that it had, or give"
            " --fresh to start over"
        )

    def finish(self) -> None:
        """Do nothing, because the last step is kept already."""

    def _watch_beginning(self, frame: FrameType) -> None:
        """Do nothing, because no step is made."""

    def save(self) -> None:
        """Do nothing, because the last step is saved already."""

"""A training that the job has behind it, in a process that resumes in a later one: as it has ended, and no further."""

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
    """What attach() returns for it."""

    def __init__(  # the state of the job is that of the later training: nothing is kept of this one
        self,
        objects: dict[str, Any],
        choices: Choices,
        coordinator: Coordinator,
        found: Mapping[str, Any],
        trainings: Trainings,
        end: int,
    ) -> None:
        """trainings: up to this one, which ended at step `end`. Raises AttachError, and what attach() raises."""
        self._coordinator, self._page = coordinator, coordinator.page
        self._trainings, self.step = trainings, end
        self._watch = Stopwatch(self._page, compared=False)
        directory = end_directory(trainings, end, coordinator)
        self._take(objects, choices, found)
        restore(self._state, self._positions, Resume.STORAGE, self.step, coordinator)
        self._variables = Survey(objects, choices, self._state)
        self.attempt, self.restored_from = coordinator.attempt, RESTORED_FROM[Resume.STORAGE]
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
        """See Job."""
        return True

    def steps(self, total: int) -> Generator[int]:
        """See Job: there is none; an adapter that does not know its total is given one that it must not make."""
        self._variables.begin(sys._getframe())
        self._state.restore_rng()
        if total > self.step:
            yield self.step
            self._refuse_step()

    def epochs(self, total: int) -> Generator[int]:
        """See Job: there is none."""
        self._state.restore_rng()
        yield from ()

    def batches(self, loader: DataLoader[Any]) -> Batches:
        """See Job. Raises AttachError."""
        self._refuse_step()

    def ask_saves(self, request: SavingRequest) -> dict[str, str]:
        """Ask for nothing, because no step is made that could be saved."""
        return {}

    def step_done(self, loss: float | None = None) -> None:
        """See Job. Raises AttachError."""
        self._refuse_step()

    def _refuse_step(self) -> NoReturn:
        raise AttachError(
            f"cannot resume: {name_of(self._trainings)} of this process had ended at step {self.step} when the job"
            " went on to the next one, and now it makes a step more; start it with the settings that it had, or give"
            " --fresh to start over"
        )

    def finish(self) -> None:
        """See Job: all is kept already."""

    def _watch_beginning(self, frame: FrameType) -> None:
        """Nothing: no step of it is made."""

    def save(self) -> None:
        """See Job: all is saved already."""

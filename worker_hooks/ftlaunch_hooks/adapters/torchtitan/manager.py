"""The checkpointer that keeps a torchtitan training safe, and otherwise works like torchtitan's own.

torchtitan calls load() when everything is built and the loop has not begun, and save() at the end of each step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torchtitan.components.checkpointer as titan

import ftlaunch_hooks as ft
from ftlaunch_hooks.adapters.refusal import refuse
from ftlaunch_hooks.adapters.torchtitan.kept_run import NAME, KeptRun

_OLDER = "checkpoint.load_step={asked} is not loaded: training goes on from step {step} of the job, which is newer"
_OWN = (
    "training begins at step {step} of a checkpoint of torchtitan's, which holds no random numbers: where training"
    " draws some, what follows is not what the run that wrote it would have done"
)


class CheckpointManager(titan.CheckpointManager):  # type: ignore[misc] # torchtitan has no types that mypy is to read
    """torchtitan's CheckpointManager, with a boundary of the job after each step."""

    @dataclass(kw_only=True, slots=True)
    class Config(titan.CheckpointManager.Config):  # type: ignore[misc]
        """The options of torchtitan's CheckpointManager, and some of our own."""

        enable: bool = True
        """Whether anything is kept, torchtitan's own checkpoints included."""

        snapshots_only: bool = False
        """Whether torchtitan's own checkpoints are neither loaded nor written."""

    def __init__(self, config: Any, **built: Any) -> None:
        """Take the config and the objects that the Trainer has built, as torchtitan's CheckpointManager does."""
        super().__init__(config, **built)
        self._built = built
        self._own = not config.snapshots_only
        self._training: KeptRun | None = None

    def _load(self, step: int = -1) -> bool:
        """Begin or resume the training. Return whether a state was loaded. Raises AttachError."""
        if self._training is not None:
            refuse("cannot load twice: the training of this process goes on")
        point = ft.peek(NAME)
        loaded = point is not None
        if point is None and self._own:
            loaded = super()._load(step)
        trainer = self._built["states"].get("train_state")
        self._training = KeptRun(trainer, self._built, None if point is None else point[1])
        if point is not None and step != -1:
            self._training.say(_OLDER.format(asked=step, step=point[0]))
        elif point is None and trainer.step > 0:
            self._training.say(_OWN.format(step=trainer.step))
        return loaded

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        """Save torchtitan's own checkpoint, if one is due, and record the step. Return whether one was saved.

        The step's boundary comes later, after the validation that may follow.
        """
        if self._training is None:  # a seed checkpoint, which no training follows
            return bool(super()._save(curr_step, last_step))
        saved = False
        if self._own:
            with self._training.job.phase("checkpoint"):
                saved = super()._save(curr_step, last_step)
        self._training.made_step()
        return saved

"""Keep one training of a torchtitan Trainer safe: attach its objects, and cross its boundaries.

A boundary lies where the Trainer asks should_continue_training(), after torchtitan's own checkpoint and the validation,
which draws random numbers. Only this module and data_position.py touch what is not in torchtitan's contract for
checkpointers. CheckpointManager makes a KeptRun as the training begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torchtitan.components.checkpointer import DATALOADER, LR_SCHEDULER, MODEL, OPTIMIZER

import ftlaunch_hooks as ft
from ftlaunch_hooks.adapters.refusal import check_first, check_members, refuse
from ftlaunch_hooks.adapters.torchtitan.data_position import DataPosition
from ftlaunch_hooks.adapters.torchtitan.held_state import HeldState
from ftlaunch_hooks.adapters.tried_versions import say_if_newer
from ftlaunch_hooks.process.say import say

NAME = "torchtitan"
"""name under which the position is attached"""
_KNOWN = "torchtitan 0.3"
_OF_TRAINER = "config step dataloader parallel_dims should_continue_training train state_dict load_state_dict"
_CONTAINER = "optimizers"  # name of torchtitan's container of optimizers, which steps them and has no state of its own
_WORKERS = (
    "torchdata saves no random numbers of a loader's workers: where the data set draws any there, those after a resume"
    " in the middle of a pass are others, and the run is not exact"
)
_ATTACHED = (MODEL, OPTIMIZER, LR_SCHEDULER, DATALOADER)


class KeptRun:
    """A Trainer's train(), from the checkpointer's load() on."""

    def __init__(self, trainer: Any, built: dict[str, Any], saved: Any) -> None:
        """Attach everything, and follow the Trainer's loop.

        Args:
            trainer: the Trainer, or None if the checkpointer was given none.
            built: the arguments with which the Trainer made the checkpointer.
            saved: the saved state of the position; None for a training that begins.

        Raises:
            AttachError: the training cannot be kept safe or restored.
        """
        check_first("torchtitan's checkpointer")
        say_if_newer()
        _check(trainer, built["optimizers"])
        position = DataPosition(trainer)
        if saved is not None:
            position.check(saved)
            if getattr(trainer.dataloader, "num_workers", 0):
                self.say(_WORKERS)
        begun = position.begin() if saved is None else None  # before attach(), as the Trainer's first step would
        objects = {**_objects(built), _CONTAINER: built["optimizers"], NAME: position}
        self.job = ft.attach(frozen=[_CONTAINER], **objects)
        trainer.dataloader = begun if begun is not None else position.begin()
        self.job.restore_rng()
        self._clear = partial(built["optimizers"].zero_grad, set_to_none=trainer.config.training.disable_cuda_graphs)
        self._made = False
        self._asks = trainer.should_continue_training
        trainer.should_continue_training = self._between
        if (validator := getattr(trainer, "validator", None)) is not None:
            self._give_time(validator)

    def say(self, sentence: str) -> None:
        """Tell the user a sentence, on rank 0."""
        if torch.distributed.get_rank() == 0:
            say(sentence)

    def made_step(self) -> None:
        """Record that the Trainer has made a step.

        Raises:
            AttachError: the Trainer has not asked should_continue_training() since the step before.
        """
        if self._made:
            refuse(
                "cannot go on: the Trainer's loop has made two steps and has not asked should_continue_training() in"
                f" between, as that of {_KNOWN} does; nothing would be saved"
            )
        self._made = True

    def _between(self) -> bool:
        """Cross a boundary, in the place of the Trainer's should_continue_training()."""
        if self._made:
            self._made = False
            self._clear()  # the next step would clear gradients first, so that they need not be saved
            self.job.step_done()
        goes_on = bool(self._asks())
        if not goes_on:
            self.job.finish()
        return goes_on

    def _give_time(self, validator: Any) -> None:
        """Have the validator run within the phase of an evaluation, to which other time limits apply than to a step."""
        validate = validator.validate

        def in_phase(*args: Any, **options: Any) -> Any:
            with self.job.phase("eval"):
                return validate(*args, **options)

        validator.validate = in_phase


def _check(trainer: Any, optimizers: Iterable[Any]) -> None:
    """Raise AttachError for a Trainer or an optimizer that cannot be kept safe."""
    if trainer is None:
        refuse(f"cannot attach: the checkpointer was given no `train_state`, which the Trainer of {_KNOWN} gives it")
    check_members(trainer, _OF_TRAINER, _KNOWN)
    for optimizer in optimizers:
        if not f"{type(optimizer).__module__}.".startswith("torch.optim."):
            refuse(
                f"cannot attach: {type(optimizer).__name__} may keep what is not in its state; known are torch's own"
                " optimizers"
            )


def _objects(built: dict[str, Any]) -> dict[str, Any]:
    """Return the objects within torchtitan's containers, and the Trainer's counters, by name."""
    named = {
        "model": [HeldState(part) for part in built["model_parts"]],
        "optimizer": list(built["optimizers"]),
        "scheduler": list(built["lr_schedulers"]),
    }
    objects = {
        f"{name}_{number}" if number else name: target
        for name, targets in named.items()
        for number, target in enumerate(targets)
    }
    return objects | {name: target for name, target in built["states"].items() if name not in _ATTACHED}

"""One training that is kept safe: what is attached, and its boundaries.

A boundary lies where the Trainer asks whether to go on: behind torchtitan's own checkpoint and validation, which draws
random numbers. What is not in torchtitan's contract for checkpointers is touched here and in data_position.py alone.
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
"""under which the position is attached"""
_KNOWN = "torchtitan 0.3"
_OF_TRAINER = "config step dataloader parallel_dims should_continue_training train state_dict load_state_dict"
_CONTAINER = "optimizers"  # it steps, and holds nothing itself
_WORKERS = (
    "torchdata saves no random numbers of a loader's workers: where the data set draws any there, those after a resume"
    " in the middle of a pass are others, and the run is not exact"
)
_ATTACHED = (MODEL, OPTIMIZER, LR_SCHEDULER, DATALOADER)


class KeptRun:
    """A Trainer's train(), from load() on."""

    def __init__(self, trainer: Any, built: dict[str, Any], saved: Any) -> None:
        """built: what the checkpointer was made with. saved: of the position, None where training begins.

        Raises AttachError for what cannot be kept safe, and what ft.attach() raises.
        """
        check_first("torchtitan's checkpointer")
        say_if_newer()
        _check(trainer, built["optimizers"])
        position = DataPosition(trainer)
        if saved is not None:
            position.check(saved)
            if getattr(trainer.dataloader, "num_workers", 0):
                self.say(_WORKERS)
        begun = position.begin() if saved is None else None  # as a Trainer alone does in its first step
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
        """Rank 0 speaks for all."""
        if torch.distributed.get_rank() == 0:
            say(sentence)

    def made_step(self) -> None:
        """The Trainer has made a step. Raises AttachError where it has not asked since the last one."""
        if self._made:
            refuse(
                "cannot go on: the Trainer's loop has made two steps and has not asked should_continue_training() in"
                f" between, as that of {_KNOWN} does; nothing would be saved"
            )
        self._made = True

    def _between(self) -> bool:
        """In the place of the Trainer's should_continue_training()."""
        if self._made:
            self._made = False
            self._clear()  # as the next step does first: they need not be saved
            self.job.step_done()
        goes_on = bool(self._asks())
        if not goes_on:
            self.job.finish()
        return goes_on

    def _give_time(self, validator: Any) -> None:
        """Limits of an evaluation hold while it validates, not those of a step."""
        validate = validator.validate

        def in_phase(*args: Any, **options: Any) -> Any:
            with self.job.phase("eval"):
                return validate(*args, **options)

        validator.validate = in_phase


def _check(trainer: Any, optimizers: Iterable[Any]) -> None:
    """Raises AttachError."""
    if trainer is None:
        refuse(f"cannot attach: the checkpointer was given no `train_state`, which the Trainer of {_KNOWN} gives it")
    check_members(trainer, _OF_TRAINER, _KNOWN)
    for one in optimizers:
        if not f"{type(one).__module__}.".startswith("torch.optim."):
            refuse(
                f"cannot attach: {type(one).__name__} may keep what is not in its state; known are torch's own"
                " optimizers"
            )


def _objects(built: dict[str, Any]) -> dict[str, Any]:
    """The modules, torch's optimizers and schedulers within torchtitan's containers, and the Trainer's counts."""
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

"""The steps of a Trainer as steps of the job.

A step is complete at the next on_step_begin: evaluation, logs and the Trainer's own checkpoint come after on_step_end,
and so does the fetch of the next batch. The last step is complete when the Trainer logs the whole training, which is
before it puts the best model in the place of the last one.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback

import ftlaunch_hooks as ft
from ftlaunch_hooks.adapters.transformers import inside, saving
from ftlaunch_hooks.adapters.transformers.kept_state import KeptState
from ftlaunch_hooks.adapters.transformers.model_part import digest_of_frozen, part_of
from ftlaunch_hooks.adapters.transformers.own_state import UnsavedAttributes
from ftlaunch_hooks.adapters.words import check_place

NAME = "trainer"
"""under which the state of the Trainer is attached"""
HOW = "ft.transformers.wrap(trainer, training=...)"
"""to give a training a word"""
_LAST_LOG = "train_runtime"  # only the log of the whole training has it


class Boundaries(TrainerCallback):  # type: ignore[misc] # transformers has no types that mypy is to read
    """Attaches as the training begins, and tells the job of each step. The first of all callbacks."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.job: ft.Job | None = None
        """of a training that is kept safe"""
        self.is_over = False
        """whether that has come to its end"""
        self._attaches = self._keeps = False
        self._counted = 0  # of the TrainerState's global_step
        self._loss: float | None = None
        self._evaluates_first = False
        self._pass = self._had = 0
        self._word, self._given = "", False
        self.began_with: str | None = None
        """the Trainer's own checkpoint with which the next training begins"""
        self._saves_with_trainer = False

    def attach_next(self, word: str, *, given: bool) -> None:
        """The next training of this Trainer is to be kept safe, and is called `word`, which the script has given."""
        self._word, self._given, self.began_with = word, given, None
        self._attaches, self._keeps, self.is_over, self.job = True, False, False, None
        self._pass = self._had = 0

    def begins_at(self, number: int, had: int) -> None:
        """The training begins in a pass over its data, behind so many batches."""
        self._pass, self._had = number, had

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Everything is built, and the loop has not begun: attach."""
        if not self._attaches:
            return
        trainer, self._attaches, self._keeps, self._loss = self._trainer, False, True, None
        inside.check_numbers(trainer)
        loader = trainer.callback_handler.train_dataloader  # among these variables its generators are found
        self._kept = kept = KeptState(trainer, loader, digest_of_frozen(trainer.model_wrapped))
        kept.began_with = self.began_with
        objects: dict[str, Any] = {**_objects(trainer), NAME: kept}
        self.job = ft.attach(training=self._word, **objects)
        if kept.over_in is not None and not self._given:
            check_place(self.job, kept.over_in, args.output_dir, HOW)
        self._counted = state.global_step
        self._saves_with_trainer = saving.ask(self.job, args, state)
        self._unsaved = UnsavedAttributes(trainer)
        self._evaluates_first = args.eval_on_start
        if kept.begun:
            args.eval_on_start = False  # it was done

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The order of the epoch's data is drawn next."""
        if self._keeps:
            args.eval_on_start = self._evaluates_first
            self._kept.fetches.begin_pass(self._pass, self._had)
            self._pass, self._had = self._pass + 1, 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The step before is complete, and the batches of this one are fetched."""
        if self._keeps:
            self._complete(state)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Have the job save as well where the Trainer has saved at a step that no interval names."""
        if self._keeps and self._saves_with_trainer and state.is_world_process_zero:
            assert self.job is not None
            self.job.save()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """The log of the whole training ends the last step."""
        self._loss = (logs or {}).get("loss", self._loss)
        if self._keeps and _LAST_LOG in (logs or {}):
            self._kept.over = True
            self._complete(state)
            assert self.job is not None
            self.job.finish()
            self.is_over = True

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """What comes now is no part of the training."""
        if self._keeps:
            args.eval_on_start = self._evaluates_first
            self._kept.fetches.close()
            self._keeps = False

    def _complete(self, state: Any) -> None:
        job = self.job
        assert job is not None
        if state.global_step > self._counted:
            self._counted, loss, self._loss = state.global_step, self._loss, None
            self._kept.begun = True
            self._unsaved.look(state.global_step)
            job.step_done(loss=loss)
        job.restore_rng()


def _own_objects(trainer: Any) -> dict[str, Any]:
    optimizer = trainer.optimizer
    objects = {
        "model": part_of(trainer.model_wrapped),
        "optimizer": getattr(optimizer, "optimizer", optimizer),
        "scheduler": trainer.lr_scheduler,
    }
    if trainer.accelerator.scaler is not None:
        objects["scaler"] = trainer.accelerator.scaler
    return objects


def _of_engine(trainer: Any) -> dict[str, Any]:
    """What DeepSpeed's engine has, and the scheduler where that is not the engine's."""
    from ftlaunch_hooks.adapters.deepspeed.attaching import kept  # noqa: PLC0415 - it imports DeepSpeed

    objects, replicated = kept(trainer.model_wrapped, lambda: 0)  # between two steps of the Trainer nothing is gathered
    if "model" in objects:
        objects["model"] = part_of(objects["model"])
    scheduler = getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler)
    return {"scheduler": scheduler, **objects, "replicated": replicated}


def _objects(trainer: Any) -> dict[str, Any]:
    """What is attached beside the state of the Trainer: as it is without what accelerate has put around it."""
    objects = _of_engine(trainer) if trainer.is_deepspeed_enabled else _own_objects(trainer)
    reference = getattr(trainer, "ref_model", None)
    if isinstance(reference, torch.nn.Module) and getattr(trainer.args, "sync_ref_model", False):
        objects["reference"] = reference
    for number, callback in enumerate(trainer.callback_handler.callbacks):
        if all(callable(getattr(callback, name, None)) for name in ("state_dict", "load_state_dict")):
            objects[f"callback_{number}"] = callback
    return objects

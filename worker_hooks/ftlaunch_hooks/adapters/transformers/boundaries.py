"""Report the steps of a Trainer to the job as its steps.

A step is complete only at the next on_step_begin, because evaluation, logs, the Trainer's own checkpoint and the fetch
of the next batch come after on_step_end. The last step is complete when the Trainer logs the whole training, before the
Trainer replaces the last model by the best one.
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
"""name under which the state of the Trainer is attached"""
HOW = "ft.transformers.wrap(trainer, training=...)"
"""the call by which a script names a training, for sentences to users"""
_LAST_LOG = "train_runtime"  # a key that only the log of the whole training has


class Boundaries(TrainerCallback):  # type: ignore[misc] # transformers has no types that mypy is to read
    """The callback that attaches as a training begins, and reports each step. It is called before all other callbacks.

    KeptTraining makes one for each Trainer, and calls `attach_next` before each training that is to be kept.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.job: ft.Job | None = None
        """the job of the training that is kept now"""
        self.is_over = False
        """whether the training that was kept last has come to its end"""
        self._attaches_next = False  # whether the next on_train_begin attaches
        self._is_training = False  # whether a training that is kept runs now
        self._counted = 0  # the TrainerState's global_step at the boundary before
        self._loss: float | None = None  # the newest logged loss that was not reported yet
        self._evaluates_first = False  # what the script has given as eval_on_start
        self._next_pass = 0  # number of the pass over the data that begins next
        self._batches_before = 0  # number of batches of that pass that were consumed before
        self._training = ""  # name of the training
        self._is_name_given = False  # whether the script chose that name
        self.began_with: str | None = None
        """path of the Trainer's own checkpoint with which the training begins; None: it begins without one"""
        self._saves_with_trainer = False  # whether the job saves whenever the Trainer does
        self._kept: KeptState  # of the training that is kept; set by on_train_begin, as is the next
        self._unsaved: UnsavedAttributes

    def attach_next(self, word: str, *, given: bool) -> None:
        """Keep the next training of this Trainer.

        Args:
            word: the training's name.
            given: whether the script chose the name.
        """
        self._training = word
        self._is_name_given = given
        self.began_with = None
        self._attaches_next = True
        self._is_training = False
        self.is_over = False
        self.job = None
        self._next_pass = 0
        self._batches_before = 0

    def begins_at(self, number: int, batches_before: int) -> None:
        """Begin the training in pass `number` over its data, after `batches_before` batches of that pass."""
        self._next_pass = number
        self._batches_before = batches_before

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Attach: everything is built now, and the loop has not begun. Raises AttachError."""
        if not self._attaches_next:
            return
        trainer = self._trainer
        self._attaches_next = False
        self._is_training = True
        self._loss = None
        inside.check_numbers(trainer)
        loader = trainer.callback_handler.train_dataloader  # a local variable, so that attach() finds its generators
        self._kept = kept = KeptState(trainer, loader, digest_of_frozen(trainer.model_wrapped))
        kept.began_with = self.began_with
        objects: dict[str, Any] = {**_objects(trainer), NAME: kept}
        self.job = ft.attach(training=self._training, **objects)
        if kept.over_in is not None and not self._is_name_given:
            check_place(self.job, before=kept.over_in, now=args.output_dir, how=HOW)
        self._counted = state.global_step
        self._saves_with_trainer = saving.ask(self.job, args, state)
        self._unsaved = UnsavedAttributes(trainer)
        self._evaluates_first = args.eval_on_start
        if kept.begun:
            args.eval_on_start = False  # the attempt before did it

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin a pass: the Trainer draws the order of the epoch's data next."""
        if self._is_training:
            args.eval_on_start = self._evaluates_first
            self._kept.fetches.begin_pass(self._next_pass, self._batches_before)
            self._next_pass += 1
            self._batches_before = 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report the step before, which is complete. The batches of the next step are already fetched."""
        if self._is_training:
            self._complete(state)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Have the job save, too, if the Trainer saves at steps that cannot be given to the job as an interval."""
        if self._is_training and self._saves_with_trainer and state.is_world_process_zero:
            assert self.job is not None
            self.job.save()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Note the loss for the next report; the log of the whole training completes the last step."""
        self._loss = (logs or {}).get("loss", self._loss)
        if self._is_training and _LAST_LOG in (logs or {}):
            self._kept.over = True
            self._complete(state)
            assert self.job is not None
            self.job.finish()
            self.is_over = True

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop keeping: what the Trainer does from here on is no part of the training."""
        if self._is_training:
            args.eval_on_start = self._evaluates_first
            self._kept.fetches.close()
            self._is_training = False

    def _complete(self, state: Any) -> None:
        """Report the step before, if one was made, and put back the random numbers of the boundary after a resume."""
        job = self.job
        assert job is not None
        if state.global_step > self._counted:
            loss = self._loss
            self._loss = None
            self._counted = state.global_step
            self._kept.begun = True
            self._unsaved.check(state.global_step)
            job.step_done(loss=loss)
        job.restore_rng()


def _own_objects(trainer: Any) -> dict[str, Any]:
    """Return what is attached of a Trainer without DeepSpeed: the objects within Accelerate's wrappers."""
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
    """Return what is attached of a Trainer with DeepSpeed: the engine's objects, and the Trainer's scheduler."""
    from ftlaunch_hooks.adapters.deepspeed.attaching import kept  # noqa: PLC0415 - it imports DeepSpeed

    objects, replicated = kept(trainer.model_wrapped, lambda: 0)  # between two steps of the Trainer nothing is gathered
    if "model" in objects:
        objects["model"] = part_of(objects["model"])
    scheduler = getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler)
    return {"scheduler": scheduler, **objects, "replicated": replicated}


def _objects(trainer: Any) -> dict[str, Any]:
    """Return everything that is attached besides the state of the Trainer, by name."""
    objects = _of_engine(trainer) if trainer.is_deepspeed_enabled else _own_objects(trainer)
    reference = getattr(trainer, "ref_model", None)
    if isinstance(reference, torch.nn.Module) and getattr(trainer.args, "sync_ref_model", False):
        objects["reference"] = reference
    for number, callback in enumerate(trainer.callback_handler.callbacks):
        if all(callable(getattr(callback, name, None)) for name in ("state_dict", "load_state_dict")):
            objects[f"callback_{number}"] = callback
    return objects

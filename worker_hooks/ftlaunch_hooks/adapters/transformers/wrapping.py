"""Wraps a Trainer: its train() goes on from the step that the job has reached."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

from transformers.trainer_utils import get_last_checkpoint

import ftlaunch_hooks as ft
from ftlaunch_hooks.adapters.refusal import refuse
from ftlaunch_hooks.adapters.transformers import inside
from ftlaunch_hooks.adapters.transformers.boundaries import HOW, NAME, Boundaries
from ftlaunch_hooks.adapters.transformers.kept_state import asked, saved_place, saved_trainer_state
from ftlaunch_hooks.adapters.tried_versions import say_if_newer
from ftlaunch_hooks.adapters.words import word_of
from ftlaunch_hooks.process.say import say

_REFUSED = {
    "auto_find_batch_size": "another batch size is another training; set per_device_train_batch_size",
    "enable_jit_checkpoint": "it takes SIGTERM for itself, by which a job is told to stop; leave it out",
}

_LEFT = (
    "the train() before this one has not come to its end: of this one nothing is saved, and after a restart the one"
    " before goes on from where it was left"
)


def wrap(trainer: Any, *, training: str = "") -> Any:
    """Have `trainer.train()` resume the job exactly, and keep it safe; returns the trainer.

    trainer: a transformers.Trainer, or of a class that is made of it. training: a word for its next train(), by which a
    job that resumes tells several trainings of one script apart. Call it before train(), on every rank. Raises
    RuntimeError where this Trainer cannot be kept safe.
    """
    if isinstance(kept := getattr(trainer.train, "__self__", None), KeptTraining):
        kept.word = training or kept.word
        return trainer
    say_if_newer()
    inside.check_kind(trainer)
    inside.check_methods(trainer)
    inside.check_sharding(trainer)
    for option, why in _REFUSED.items():
        if getattr(trainer.args, option, None):
            refuse(f"cannot keep this Trainer: its argument `{option}` is set: {why}")
    trainer.train = KeptTraining(trainer, training).train
    return trainer


TrainerWrapper = wrap


class KeptTraining:
    """The trainings of a Trainer."""

    newest: Boundaries | None = None
    """of the training of this process that was kept last"""

    def __init__(self, trainer: Any, word: str) -> None:
        self._trainer, self._plain_train = trainer, trainer.train
        self.word = word
        """of the script's, for the next one"""
        self._speaks = bool(trainer.is_world_process_zero())
        self._boundaries = Boundaries(trainer)
        inside.put_first(trainer, self._boundaries)
        trainer.evaluate = self._in_phase("eval", trainer.evaluate)
        inside.around_saves(trainer, lambda: self._phase("checkpoint"))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Trainer.train(), from where the job is. Raises AttachError for a search of hyperparameters."""
        if KeptTraining.newest is not None and not KeptTraining.newest.is_over:
            self._say(_LEFT)
            return self._plain_train(resume_from_checkpoint, *args, **kwargs)
        KeptTraining.newest = self._boundaries
        if (args and args[0] is not None) or kwargs.get("trial") is not None:
            refuse("cannot keep a search of hyperparameters: it trains several times; wrap none for it")
        if self._trainer.args.ignore_data_skip:
            self._say("ignore_data_skip is set: a resumed run sees samples twice or not at all, and is not exact")
        given, self.word = self.word, ""
        word = word_of(given, HOW, speaks=self._speaks)
        self._boundaries.attach_next(word, given=bool(given))
        point = ft.peek(NAME, training=word)
        if point is None or not point[1]["begun"]:
            return self._train_anew(resume_from_checkpoint, *args, **kwargs)
        step, saved = point
        if resume_from_checkpoint:
            self._say(f"resume_from_checkpoint is not used: the job goes on from its own step {step}")
        over = saved["over"] and saved["asked"] == asked(self._trainer)
        if saved["asked"] != asked(self._trainer):
            before, now = saved["asked"], asked(self._trainer)
            self._say(
                f"max_steps and num_train_epochs are {now} now, and were {before}: from here on the run is not that of"
                " one that was asked for either from its beginning"
            )
        with inside.position(self._trainer, saved_trainer_state(saved), over=over) as directory, ExitStack() as stack:

            def begins(number: int, had: int) -> None:
                directory.cleanup()  # a rank that is killed leaves none
                self._boundaries.begins_at(number, had)

            if not over:
                place = saved_place(saved, self._trainer.args.world_size)
                stack.enter_context(inside.begins_at(self._trainer, place, begins))
            return self._plain_train(directory.name, *args, **kwargs)

    def _train_anew(self, resume_from_checkpoint: str | bool | None, *args: Any, **kwargs: Any) -> Any:
        directory = self._trainer.args.output_dir
        if resume_from_checkpoint is True and get_last_checkpoint(directory) is None:
            self._say(f"there is no checkpoint in {directory} yet: the training begins")
            resume_from_checkpoint = None
        with inside.begins_at(self._trainer, None, self._boundaries.begins_at):
            return self._plain_train(resume_from_checkpoint, *args, **kwargs)

    def _say(self, text: str) -> None:
        if self._speaks:
            say(text)

    def _phase(self, name: str) -> Any:
        job = self._boundaries.job
        return nullcontext() if job is None else job.phase(name)

    def _in_phase(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def call_in_phase(*args: Any, **kwargs: Any) -> Any:
            with self._phase(name):
                return call(*args, **kwargs)

        return call_in_phase

"""Wrap a Trainer, so that its train() resumes at the step that the job has reached.

`wrap` is public; auto_transformers.py calls it, too, for scripts that do not know these hooks. It replaces
`trainer.train` by KeptTraining.train, which decides where a training begins and then calls the Trainer's own method.
All of this runs on the main thread of every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import ftlaunch_hooks as ft
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import Resume
from ftlaunch_hooks.adapters.refusal import refuse
from ftlaunch_hooks.adapters.transformers import inside, own_checkpoints
from ftlaunch_hooks.adapters.transformers.boundaries import HOW, NAME, Boundaries
from ftlaunch_hooks.adapters.transformers.kept_state import asked, saved_place, saved_trainer_state
from ftlaunch_hooks.adapters.transformers.own_checkpoints import TrainerCheckpoint
from ftlaunch_hooks.adapters.tried_versions import say_if_newer
from ftlaunch_hooks.adapters.words import word_of
from ftlaunch_hooks.job.attaching import begin_at, resume_kind
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
    """Have `trainer.train()` resume the job exactly, and keep the training safe.

    Call this on every rank, before train().

    Args:
        trainer: a transformers.Trainer, or an object of a derived class.
        training: a word that names the next train(), by which a job that resumes tells several trainings of one script
            apart.

    Returns:
        The trainer.

    Raises:
        RuntimeError: this Trainer cannot be kept safe (AttachError).
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
    """The trainings of one Trainer."""

    newest: Boundaries | None = None
    """the callback of the training that was kept last in this process, of any Trainer"""

    def __init__(self, trainer: Any, word: str) -> None:
        self._trainer = trainer
        self._plain_train = trainer.train
        self.word = word
        """the script's name for the next training; empty without one"""
        self._speaks = bool(trainer.is_world_process_zero())
        self._boundaries = Boundaries(trainer)
        inside.put_first(trainer, self._boundaries)
        trainer.evaluate = self._in_phase("eval", trainer.evaluate)
        inside.wrap_saves(trainer, lambda: self._phase("checkpoint"))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Run Trainer.train() from the step that the job has reached. The arguments are those of Trainer.train().

        Raises:
            AttachError: the training cannot be kept or cannot be resumed, or is part of a search of hyperparameters.
        """
        if KeptTraining.newest is not None and not KeptTraining.newest.is_over:
            self._say(_LEFT)
            return self._plain_train(resume_from_checkpoint, *args, **kwargs)
        KeptTraining.newest = self._boundaries
        if (args and args[0] is not None) or kwargs.get("trial") is not None:
            refuse("cannot keep a search of hyperparameters: it trains several times; wrap none for it")
        if self._trainer.args.ignore_data_skip:
            self._say("ignore_data_skip is set: a resumed run sees samples twice or not at all, and is not exact")
        given = self.word
        self.word = ""
        word = word_of(given, HOW, speaks=self._speaks)
        self._boundaries.attach_next(word, given=bool(given))
        point = ft.peek(NAME, training=word)
        theirs = self._newer_of_trainer(resume_from_checkpoint, point)
        if theirs is not None:
            return self._begin_with(theirs, point, word, *args, **kwargs)
        if point is None:
            return self._begin_job(resume_from_checkpoint, *args, **kwargs)
        step, saved = point
        if not saved["begun"]:
            return self._begin_as_before(saved["began_with"], *args, **kwargs)
        if resume_from_checkpoint:
            self._say(f"resume_from_checkpoint is not used: the job goes on from its own step {step}")
        over = self._is_over(saved)
        if saved["asked"] != asked(self._trainer):
            before = saved["asked"]
            now = asked(self._trainer)
            self._say(
                f"max_steps and num_train_epochs are {now} now, and were {before}: from here on the run is not that of"
                " one that was asked for either from its beginning"
            )
        with inside.position(self._trainer, saved_trainer_state(saved), over=over) as directory, ExitStack() as stack:

            def begins(number: int, had: int) -> None:
                directory.cleanup()  # now, so that a rank that is killed later leaves no directory behind
                self._boundaries.begins_at(number, had)

            if not over:
                place = saved_place(saved, self._trainer.args.world_size)
                stack.enter_context(inside.begins_at(self._trainer, place, begins))
            return self._plain_train(directory.name, *args, **kwargs)

    def _newer_of_trainer(
        self, asked_for: str | bool | None, point: tuple[int, Any] | None
    ) -> TrainerCheckpoint | None:
        """Return the Trainer's own checkpoint if the script asks to resume and the job has no step as new.

        A job that resumes from memory always has the newest step, and --load-checkpoint comes before the Trainer's
        checkpoints.

        Args:
            asked_for: the argument `resume_from_checkpoint` of train().
            point: the step and the Trainer's state that the job would resume from, None for a job that begins.

        Raises:
            AttachError: the training can only begin with a checkpoint that some rank does not see.
        """
        kind = resume_kind()
        if kind not in (Resume.FRESH, Resume.STORAGE) or (point is not None and self._is_over(point[1])):
            return None
        own = NONE if point is None else point[1]["fields"]["global_step"]
        if not asked_for:
            self._report_newer(own)
            return None
        found = own_checkpoints.find(asked_for, self._trainer.args, whole=point is not None)
        if asked_for is True:
            self._report_incomplete(own if found is None else max(own, found.checkpoint.step))
        if found is None or found.checkpoint.step <= own:
            return None
        theirs = found.checkpoint
        if found.blind_rank is not None:
            unseen = f"rank {found.blind_rank} does not see the Trainer's checkpoint of step {theirs.step}"
            shared = "an output_dir that all nodes share"
            if point is None:
                refuse(f"cannot begin: {unseen}; give {shared}, or train() without resume_from_checkpoint")
            self._say(f"{unseen}, which is newer than the job's own step {own} and needs {shared}")
            return None
        if point is not None and theirs.step >= self._last_step(theirs):
            self._say(f"{theirs.path} is the end of a training, from which the Trainer would make one step too many")
            return None
        return theirs

    def _report_incomplete(self, step: int) -> None:
        """Report incomplete checkpoints of later steps than `step`, which are not used."""
        directory = self._trainer.args.output_dir
        if self._speaks and (names := own_checkpoints.incomplete(directory, step)):
            say(
                f"{', '.join(names)} in {directory} is incomplete, and passed over: the Trainer did not come to its end"
            )

    def _report_newer(self, own: int) -> None:
        """Report a checkpoint of the Trainer that is newer than the job's step `own`, if the script asks for none."""
        if not self._speaks or own == NONE:
            return
        theirs = own_checkpoints.newest(self._trainer.args.output_dir, whole=True)
        if theirs is not None and theirs.step > own:
            say(
                f"the Trainer's own {theirs.path} is newer than the job's step {own}, and is not used, as the script"
                " does not ask for it: train(resume_from_checkpoint=True) goes on from the newer of both"
            )

    def _last_step(self, theirs: TrainerCheckpoint) -> int:
        """Return the step with which a training from the checkpoint `theirs` ends."""
        most = self._trainer.args.max_steps
        return int(most) if most > 0 else theirs.last

    def _is_over(self, saved: Mapping[str, Any]) -> bool:
        """Whether a saved training was over, and the script asks for no more steps than before."""
        return bool(saved["over"] and saved["asked"] == asked(self._trainer))

    def _begin_with(
        self, theirs: TrainerCheckpoint, point: tuple[int, Any] | None, word: str, *args: Any, **kwargs: Any
    ) -> Any:
        """Train from a checkpoint that the Trainer loads by itself.

        The difference between the job's number of steps and the Trainer's stays what it was.
        """
        ahead = 0  # steps of the job before the Trainer's first one
        reason = "has no checkpoint"
        if point is not None:
            step, saved = point
            ahead = step - saved["fields"]["global_step"]
            reason = f"has nothing newer than step {step}"
        begin_at(theirs.step + ahead, training=word)
        self._say(
            f"the training begins at step {theirs.step} with the Trainer's own checkpoint {theirs.path}, as the job"
            f" {reason}: what is restored is what the Trainer restores, and the run may differ from an undisturbed one"
        )
        return self._train_from(theirs.path, *args, **kwargs)

    def _begin_as_before(self, began_with: str | None, *args: Any, **kwargs: Any) -> Any:
        """Train from the checkpoint with which the job began, if any: no step was completed since.

        Raises:
            AttachError: the checkpoint is gone.
        """
        if began_with is not None and not Path(began_with).is_dir():
            refuse(
                f"cannot resume: the job has begun with the Trainer's own checkpoint {began_with}, which is gone, and"
                " no step was made since; put it back, or start over with --fresh"
            )
        return self._train_from(began_with, *args, **kwargs)

    def _begin_job(self, resume_from_checkpoint: str | bool | None, *args: Any, **kwargs: Any) -> Any:
        """Train from the beginning, or from the checkpoint that the script names if the Trainer can load that."""
        directory = self._trainer.args.output_dir
        if resume_from_checkpoint and resume_kind() is not Resume.FRESH:
            self._say("resume_from_checkpoint is not used: the job begins with what --load-checkpoint names")
            resume_from_checkpoint = None
        elif resume_from_checkpoint is True:
            self._say(f"there is no checkpoint in {directory} yet: the training begins")
            resume_from_checkpoint = None
        return self._train_from(resume_from_checkpoint, *args, **kwargs)

    def _train_from(self, checkpoint: str | bool | None, *args: Any, **kwargs: Any) -> Any:
        """Run the Trainer's own train() from a checkpoint of the Trainer, or without one from the beginning."""
        self._boundaries.began_with = str(checkpoint) if checkpoint else None
        with inside.begins_at(self._trainer, None, self._boundaries.begins_at):
            return self._plain_train(checkpoint, *args, **kwargs)

    def _say(self, text: str) -> None:
        if self._speaks:
            say(text)

    def _phase(self, name: str) -> Any:
        """Return a context that marks a phase of the job that runs, if any."""
        job = self._boundaries.job
        return nullcontext() if job is None else job.phase(name)

    def _in_phase(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call` within the phase `name` of the job."""

        def call_in_phase(*args: Any, **kwargs: Any) -> Any:
            with self._phase(name):
                return call(*args, **kwargs)

        return call_in_phase

"""Save and restore what a Trainer keeps besides its model, optimizer and scheduler.

Boundaries attaches one KeptState as a training begins. `saved_place`, `saved_trainer_state` and `asked` serve
KeptTraining, which reads a saved state before the training begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers.trainer_callback import ExportableState, TrainerControl

from ftlaunch_hooks.adapters.transformers import inside
from ftlaunch_hooks.adapters.transformers.data.fetches import Fetches
from ftlaunch_hooks.adapters.transformers.history import History, entries_of


class KeptState:
    """The state of a Trainer, as an object to attach."""

    def __init__(self, trainer: Any, loader: Any, base: int | None) -> None:
        """Begin to follow a training, which begins.

        Args:
            trainer: the Trainer.
            loader: the loader of its training data.
            base: the digest of the frozen parameters (model_part.digest_of_frozen).

        Raises:
            AttachError: the loader's position cannot be saved.
        """
        self._trainer = trainer
        self._base = base
        self.keeps_position_of = [loader, loader.dataset, getattr(loader, "batch_sampler", None)]
        self.fetches = Fetches(trainer, loader)
        self._history = History()
        self.begun = False
        """whether a step was completed"""
        self.over = False
        """whether the training has left its loop"""
        self.began_with: str | None = None
        """path of the Trainer's own checkpoint with which the training began; used again until a step is complete"""
        self.over_in: str | None = None
        """output_dir of the training that was restored, if that training was over"""

    def state_dict(self) -> dict[str, Any]:
        """Return the state at a boundary. Raises TypeError where JSON cannot hold an entry of the log history."""
        trainer = self._trainer
        entries = trainer.state.log_history
        return {
            "begun": self.begun,
            "began_with": self.began_with,
            "over": self.over or (self.over_in is not None and not self.fetches.has_begun),
            "asked": asked(trainer),
            "folder": trainer.args.output_dir,
            "base": self._base,
            "fields": inside.fields_of(trainer.state),
            "history": self._history.state(entries[:-1] if self.over else entries),  # the last entry is made again
            "loss_sum": inside.loss_sum(trainer),
            "callbacks": _exported(trainer),
            "stateful_callbacks": trainer.state.stateful_callbacks,  # as of the Trainer's own last checkpoint
            "data": self.fetches.state(),
            **inside.numbers(trainer),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore everything but the TrainerState, with which the Trainer begins (`saved_trainer_state`).

        Raises:
            TypeError: the frozen parameters or the callbacks differ from those of the saved training.
        """
        if saved["base"] != self._base:
            raise TypeError(
                "cannot resume: the frozen parameters of the model are not those with which the job began, and they are"
                " not saved; load the same base model, or begin anew with --fresh"
            )
        if not saved["begun"]:
            return
        trainer = self._trainer
        self.begun = True
        trainer.state.global_step = saved["fields"]["global_step"]
        trainer.state.stateful_callbacks = saved["stateful_callbacks"]
        inside.put_back_numbers(trainer, saved)
        inside.loss_sum(trainer).copy_(saved["loss_sum"])
        if saved["over"]:
            self.over_in = saved["folder"]
            inside.loss_sum(trainer).zero_()  # the Trainer's total includes these losses
        _put_back_exported(trainer, saved["callbacks"])
        self.fetches.load(saved["data"])


def saved_place(saved: Mapping[str, Any], ranks: int) -> tuple[int, int] | None:
    """Return the place in the data at which a saved training resumes.

    Args:
        saved: the state of a KeptState.
        ranks: number of ranks of the present job.

    Returns:
        The number of the pass over the data and the number of its batches that were consumed. None where the Trainer
        has to compute its place from the number of steps: the number of ranks has changed, or a training that was over
        is continued.
    """
    data = saved["data"]
    return (data["pass"], data["had"]) if data["ranks"] == ranks and not saved["over"] else None


def saved_trainer_state(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the saved TrainerState, for JSON."""
    return {**saved["fields"], "log_history": entries_of(saved["history"]), "stateful_callbacks": {}}


def asked(trainer: Any) -> list[Any]:
    """Return how much training the Trainer's arguments ask for: max_steps and num_train_epochs."""
    return [trainer.args.max_steps, trainer.args.num_train_epochs]


def _exportable(trainer: Any) -> list[Any]:
    """Return the callbacks whose states the Trainer itself would save in its checkpoints."""
    exportable = [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, ExportableState)]
    return [callback for callback in exportable if not isinstance(callback, TrainerControl)]


def _exported(trainer: Any) -> list[list[Any]]:
    return [[type(callback).__name__, callback.state()] for callback in _exportable(trainer)]


def _put_back_exported(trainer: Any, saved: list[list[Any]]) -> None:
    """Set attributes of the callbacks, which are not replaced because the script may hold them. Raises TypeError."""
    callbacks = _exportable(trainer)
    now = [type(callback).__name__ for callback in callbacks]
    before = [name for name, _ in saved]
    if now != before:
        raise TypeError(f"cannot resume: the Trainer's callbacks with a state are {now} now, and were {before}")
    for callback, (_, state) in zip(callbacks, saved, strict=True):
        for name, value in {**state.get("args", {}), **state.get("attributes", {})}.items():
            if hasattr(callback, name):
                setattr(callback, name, value)

"""What is saved of a Trainer beside its model, optimizer and scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers.trainer_callback import ExportableState, TrainerControl

from ftlaunch_hooks.adapters.transformers import inside
from ftlaunch_hooks.adapters.transformers.data.fetches import Fetches
from ftlaunch_hooks.adapters.transformers.history import History, entries_of


class KeptState:
    """An object to attach."""

    def __init__(self, trainer: Any, loader: Any, base: int | None) -> None:
        """The training begins. loader: that trains. base: see model_part.digest_of_frozen."""
        self._trainer, self._base = trainer, base
        self.keeps_position_of = [loader, loader.dataset, getattr(loader, "batch_sampler", None)]
        self.fetches = Fetches(trainer, loader)
        self._history = History()
        self.begun = self.over = False
        """whether a step was completed; whether the loop is left"""
        self.began_with: str | None = None
        """the Trainer's own checkpoint with which the training began, to begin with it again before the first step"""
        self.over_in: str | None = None
        """the folder of what was restored, where that training was over"""

    def state_dict(self) -> dict[str, Any]:
        """Raises TypeError for what JSON cannot hold."""
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
            "history": self._history.state(entries[:-1] if self.over else entries),  # the last one is written again
            "loss_sum": inside.loss_sum(trainer),
            "callbacks": _exported(trainer),
            "stateful_callbacks": trainer.state.stateful_callbacks,  # as of the Trainer's own last checkpoint
            "data": self.fetches.state(),
            **inside.numbers(trainer),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Put back all but the TrainerState, with which the Trainer begins: `saved_trainer_state`.

        Raises TypeError where the frozen parameters are other ones.
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
            inside.loss_sum(trainer).zero_()  # it is in the total
        _put_back_exported(trainer, saved["callbacks"])
        self.fetches.load(saved["data"])


def saved_place(saved: Mapping[str, Any], ranks: int) -> tuple[int, int] | None:
    """The pass over the data, and how many batches of it were had; None where the Trainer is to find it by its steps.

    That is where the ranks share the data otherwise, and where a training that was over is to go on.
    """
    data = saved["data"]
    return (data["pass"], data["had"]) if data["ranks"] == ranks and not saved["over"] else None


def saved_trainer_state(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the TrainerState that was saved, for JSON."""
    return {**saved["fields"], "log_history": entries_of(saved["history"]), "stateful_callbacks": {}}


def asked(trainer: Any) -> list[Any]:
    """How much training the arguments ask for."""
    return [trainer.args.max_steps, trainer.args.num_train_epochs]


def _exportable(trainer: Any) -> list[Any]:
    callbacks = trainer.callback_handler.callbacks
    return [one for one in callbacks if isinstance(one, ExportableState) and not isinstance(one, TrainerControl)]


def _exported(trainer: Any) -> list[list[Any]]:
    return [[type(callback).__name__, callback.state()] for callback in _exportable(trainer)]


def _put_back_exported(trainer: Any, saved: list[list[Any]]) -> None:
    """The callbacks stay the objects that they are: a script may hold them."""
    callbacks = _exportable(trainer)
    now, before = [type(callback).__name__ for callback in callbacks], [name for name, _ in saved]
    if now != before:
        raise TypeError(f"cannot resume: the Trainer's callbacks with a state are {now} now, and were {before}")
    for callback, (_, state) in zip(callbacks, saved, strict=True):
        for name, value in {**state.get("args", {}), **state.get("attributes", {})}.items():
            if hasattr(callback, name):
                setattr(callback, name, value)

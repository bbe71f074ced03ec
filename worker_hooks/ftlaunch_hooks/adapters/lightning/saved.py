"""Save and restore what Lightning keeps besides weights and optimizers.

This is what Lightning's own checkpoints hold, and some attributes of callbacks and of the Trainer that these lack.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ftlaunch_hooks.adapters.lightning import swa
from ftlaunch_hooks.adapters.refusal import check_members, refuse

_OF_HOOKS = ("state_dict", "optimizer_states", "lr_schedulers", "loops")  # these are attached, or saved by loops.py
_AVERAGED = ("current_model_state", "averaging_state")  # keys of WeightAveraging, whose model is attached
_CONSTANT = (
    "hparams_name",
    "hyper_parameters",
    "hparams_type",
    "datamodule_hyper_parameters",
    "datamodule_hparams_name",
)
_SAVED_LAST = ("_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation", "current_score")
_SETTINGS = ("should_stop", "accumulate_grad_batches")  # attributes of the Trainer that callbacks change
_FINDS = "it makes steps of its own before training; find it in a run without ftlaunch"
_UNSAVED = {
    "BaseFinetuning": "it gives the optimizer other parameter groups while it trains",
    "BatchSizeFinder": _FINDS,
    "LearningRateFinder": _FINDS,
    "ModelPruning": "it gives layers other parameters while it trains",
}


def check(trainer: Any) -> None:
    """Raise AttachError for a Trainer with callbacks or private parts that cannot be restored."""
    check_members(trainer, "_checkpoint_connector", "Lightning 2.6")
    check_members(trainer._checkpoint_connector, "dump_checkpoint _loaded_checkpoint", "Lightning 2.6")
    swa.check(trainer)
    for callback in trainer.callbacks:
        for kind in type(callback).__mro__:
            if kind.__name__ in _UNSAVED and _is_lightnings(kind):
                refuse(f"cannot attach beside the callback {type(callback).__name__}: {_UNSAVED[kind.__name__]}")


def _is_lightnings(kind: type) -> bool:
    return kind.__module__.startswith(("lightning.", "pytorch_lightning."))


def averaged_models(trainer: Any) -> Iterator[Any]:
    """Yield the models of WeightAveraging callbacks."""
    for callback in trainer.callbacks:
        if _averages(callback):
            yield callback._average_model


def _averages(callback: Any) -> bool:
    return any(kind.__name__ == "WeightAveraging" and _is_lightnings(kind) for kind in type(callback).__mro__)


def state(trainer: Any) -> dict[str, Any]:
    """Return the state at a boundary."""
    checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    for key in (*_OF_HOOKS, *_AVERAGED, *_CONSTANT):
        checkpoint.pop(key, None)
    beside = {callback.state_key: _beside(callback) for callback in trainer.callbacks if _beside(callback)}
    settings = {name: getattr(trainer, name) for name in _SETTINGS}
    return {"checkpoint": checkpoint, "beside": beside, "settings": settings, "swa": swa.state(trainer)}


def _beside(callback: Any) -> dict[str, Any]:
    """Return the attributes of a ModelCheckpoint that describe its last checkpoint, which it does not save itself."""
    return {name: vars(callback)[name] for name in _SAVED_LAST if name in vars(callback)}


def restore_folders(trainer: Any, saved: dict[str, Any]) -> None:
    """Restore the directories of ModelCheckpoints, which were derived from a logger's version of this attempt."""
    for callback in trainer.callbacks:
        held = saved["checkpoint"]["callbacks"].get(callback.state_key, {})
        if "dirpath" in held:
            callback.dirpath = held["dirpath"]


def restore(trainer: Any, saved: dict[str, Any]) -> None:
    """Restore callbacks, modules and precision before the loops begin, as Lightning does from its own checkpoints."""
    module = trainer.lightning_module
    data = trainer.datamodule
    precision = trainer.precision_plugin
    checkpoint = {**saved["checkpoint"], "state_dict": module.state_dict()}
    for callback in trainer.callbacks:
        if not _averages(callback):
            callback.on_load_checkpoint(trainer, module, checkpoint)
        held = checkpoint["callbacks"].get(callback.state_key)
        if held is not None:
            callback.load_state_dict(held)
        vars(callback).update(saved["beside"].get(callback.state_key, {}))
    module.on_load_checkpoint(checkpoint)
    if data is not None and (name := type(data).__qualname__) in checkpoint:
        data.load_state_dict(checkpoint[name])
    precision.on_load_checkpoint(checkpoint)
    if (name := type(precision).__qualname__) in checkpoint:
        precision.load_state_dict(checkpoint[name])
    trainer._checkpoint_connector._loaded_checkpoint = {}  # drops the checkpoint of a ckpt_path=, which is older


def restore_settings(trainer: Any, saved: dict[str, Any]) -> None:
    """Restore the Trainer's settings once the loops have resumed, because earlier hooks may have changed these."""
    for name, value in saved["settings"].items():
        setattr(trainer, name, value)
    swa.restore(trainer, saved["swa"])

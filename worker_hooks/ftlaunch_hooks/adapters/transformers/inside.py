"""Read and change the private parts of a Trainer, which transformers may change in any release.

Only this module, loops.py and rollouts.py touch private parts. The check_... functions, which `wrap` and the start of a
training call, refuse a Trainer whose private parts are missing.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME

from ftlaunch_hooks.adapters.refusal import refuse
from ftlaunch_hooks.adapters.transformers import rollouts
from ftlaunch_hooks.adapters.transformers.loops import OnBegin, instead, loop_of

_LOADERS = ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_scaler", "_load_rng_state")
_SAVER = "_save_checkpoint"
_NUMBERS = ("_total_loss_scalar", "_globalstep_last_logged", "current_flos")
_IN_SOME_VERSIONS = ("_initial_global_step", "_initial_num_input_tokens_seen")
_TRIED = ("SFTTrainer", "DPOTrainer", rollouts.KIND)  # of TRL
_METRICS = ("_metrics", "_total_train_tokens", "_stored_metrics")  # of TRL's trainers, between two logs
_BEYOND = 10**30  # a number of steps that lies behind the last epoch of any training


def check_kind(trainer: Any) -> None:
    """Raise AttachError for a Trainer with a loop of its own, or of a class of TRL that was not tried."""
    kind = type(trainer)
    if kind.train is not Trainer.train:
        refuse(f"cannot keep this Trainer: {kind.__name__} has a train() of its own")
    of_trl = [base.__name__ for base in kind.__mro__ if base.__module__.startswith("trl.")]
    if of_trl and of_trl[0] not in _TRIED:
        refuse(
            f"cannot keep this Trainer: what TRL's {of_trl[0]} keeps from one step to the next is not saved here; those"
            f" that are kept are {', '.join(_TRIED)}"
        )
    if rollouts.KIND in of_trl:
        rollouts.check(trainer)


def check_sharding(trainer: Any) -> None:
    """Raise AttachError where FSDP or DeepSpeed shard or offload the model in a way that cannot be kept."""
    state = trainer.accelerator.state
    fsdp = getattr(state, "fsdp_plugin", None)
    deepspeed = getattr(state, "deepspeed_plugin", None)
    if fsdp is not None and fsdp.fsdp_version != 2:
        refuse(
            f"cannot keep this Trainer: it is given FSDP of version {fsdp.fsdp_version}, whose state_dict() is a"
            ' collective; give fsdp_config={"version": 2}'
        )
    if deepspeed is not None:
        _check_offload(deepspeed.hf_ds_config)


def _check_offload(config: Any) -> None:
    for what in ("offload_optimizer", "offload_param"):
        if (device := config.get_value(f"zero_optimization.{what}.device")) not in (None, "none", "cpu"):
            refuse(f"cannot keep this Trainer: DeepSpeed's {what} is to {device}; allowed is the device `cpu`")


def check_methods(trainer: Any) -> None:
    """Raise AttachError where this version of transformers lacks a method that the adapter uses."""
    loop = loop_of(trainer)
    engine = loop.methods_of_engine if trainer.is_deepspeed_enabled else ()
    names = (*_LOADERS, _SAVER, *loop.methods, *engine)
    _check([name for name in names if not callable(getattr(trainer, name, None))])


def check_numbers(trainer: Any) -> None:
    """Raise AttachError where a Trainer lacks a counter that is saved. Call it once the training has begun."""
    _check([name for name in (*_NUMBERS, *loop_of(trainer).numbers) if not hasattr(trainer, name)])


def _check(missing: list[str]) -> None:
    """Raise AttachError if any attribute is missing."""
    if missing:
        import transformers  # noqa: PLC0415 - for its version

        refuse(
            f"cannot keep this Trainer: transformers {transformers.__version__} has no Trainer.{missing[0]}, by which"
            " a training is moved to where it was; without ft.transformers.wrap() it runs as always"
        )


def numbers(trainer: Any) -> dict[str, Any]:
    """Return the counters and metrics that a Trainer keeps besides its TrainerState, to be saved."""
    metrics = {name: _plain(vars(trainer)[name]) for name in _METRICS if name in vars(trainer)}
    counted = {name: getattr(trainer, name) for name in (*_NUMBERS, *_IN_SOME_VERSIONS) if hasattr(trainer, name)}
    return {"numbers": counted, "metrics": metrics, "rollouts": rollouts.state(trainer)}


def loss_sum(trainer: Any) -> Any:
    """Return the tensor to which the Trainer adds the losses since the last log.

    The tensor exists only while the Trainer is in its loop. Call this function from a callback.
    """
    return loop_of(trainer).loss_sum(trainer)


def put_back_numbers(trainer: Any, saved: Mapping[str, Any]) -> None:
    """Put back the counters and metrics that `numbers` returned."""
    for name, value in saved["numbers"].items():
        setattr(trainer, name, value)
    for name, value in saved["metrics"].items():
        _refill(trainer, name, value)
    rollouts.put_back(trainer, saved["rollouts"])


def _plain(value: Any) -> Any:
    """Return nested dictionaries of any class, such as TRL's defaultdicts, as plain ones."""
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def _refill(trainer: Any, name: str, value: Any) -> None:
    """Set the attribute `name`. Dictionaries are filled and not replaced, because TRL's are defaultdicts."""
    kept = getattr(trainer, name)
    if not isinstance(kept, dict):
        setattr(trainer, name, value)
        return
    for key, item in value.items():
        if isinstance(kept.get(key), dict):
            kept[key].clear()
            kept[key].update(item)
        else:
            kept[key] = item


def put_first(trainer: Any, callback: TrainerCallback) -> None:
    """Add a callback that is called before all others, so that at a boundary none of these has begun the next step."""
    trainer.add_callback(callback)
    callbacks = trainer.callback_handler.callbacks
    callbacks.insert(0, callbacks.pop())


def begins_at(trainer: Any, place: tuple[int, int] | None, on_begin: OnBegin) -> AbstractContextManager[None]:
    """Have a training that begins within the context begin at a place in its data.

    Args:
        trainer: the Trainer.
        place: number of a pass over the data, and number of its batches that were consumed; None: where the Trainer
            itself finds its place.
        on_begin: called with the place once the Trainer has read its checkpoint. It may not be called for a training
            that begins at its beginning.
    """
    return loop_of(trainer).begins_at(trainer, place, on_begin)


def wrap_saves(trainer: Any, make_context: Callable[[], Any]) -> None:
    """Have the Trainer save each of its own checkpoints within the context that `make_context()` returns."""
    save = getattr(trainer, _SAVER)

    def save_within(*args: Any, **kwargs: Any) -> Any:
        with make_context():
            return save(*args, **kwargs)

    setattr(trainer, _SAVER, save_within)


@contextmanager
def position(trainer: Any, state: Mapping[str, Any], *, over: bool) -> Iterator[tempfile.TemporaryDirectory[str]]:
    """Make a checkpoint that tells the Trainer its position and holds no tensors, which attach() restores.

    Within the context the Trainer loads only the position. The directory can be cleaned up once the training begins.

    Args:
        trainer: the Trainer.
        state: the fields of the TrainerState.
        over: whether no step is left. The position then lies behind the last epoch, and the Trainer goes straight to
            what follows its loop.

    Yields:
        The directory, to be given to train() as `resume_from_checkpoint`.
    """
    written = {**state, "global_step": _BEYOND if over else state["global_step"]}
    engine = loop_of(trainer).engine_loads_nothing(trainer) if trainer.is_deepspeed_enabled else nullcontext()
    with engine, instead(trainer, {name: partial(_load_nothing, name) for name in _LOADERS}):
        directory = tempfile.TemporaryDirectory(prefix="ftlaunch-position-")
        with directory:
            Path(directory.name, TRAINER_STATE_NAME).write_text(json.dumps(written))
            yield directory


def _load_nothing(name: str, *args: Any, **kwargs: Any) -> None:
    """Stand in for a method `name` of the Trainer: attach() restores what that method would load."""


def fields_of(state: Any) -> dict[str, Any]:
    """Return the fields of a TrainerState, without the history and the callbacks' states, which are saved apart."""
    apart = ("log_history", "stateful_callbacks")
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(state) if field.name not in apart}

"""What the adapter touches of a Trainer that transformers does not promise to keep: here alone, and checked."""

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
from ftlaunch_hooks.adapters.transformers.loops import Told, instead, loop_of

_LOADERS = ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_scaler", "_load_rng_state")
_SAVER = "_save_checkpoint"
_NUMBERS = ("_total_loss_scalar", "_globalstep_last_logged", "current_flos")
_IN_SOME_VERSIONS = ("_initial_global_step", "_initial_num_input_tokens_seen")
_TRIED = ("SFTTrainer", "DPOTrainer", rollouts.KIND)  # of TRL
_METRICS = ("_metrics", "_total_train_tokens", "_stored_metrics")  # of TRL's trainers, between two logs
_BEYOND = 10**30  # steps: more than any number of epochs has


def check_kind(trainer: Any) -> None:
    """Raises AttachError where the Trainer keeps something between its steps, or has a loop of its own."""
    kind = type(trainer)
    if kind.train is not Trainer.train:
        refuse(f"cannot keep this Trainer: {kind.__name__} has a train() of its own")
    of_trl = [one.__name__ for one in kind.__mro__ if one.__module__.startswith("trl.")]
    if of_trl and of_trl[0] not in _TRIED:
        refuse(
            f"cannot keep this Trainer: what TRL's {of_trl[0]} keeps from one step to the next is not saved here; those"
            f" that are kept are {', '.join(_TRIED)}"
        )
    if rollouts.KIND in of_trl:
        rollouts.check(trainer)


def check_sharding(trainer: Any) -> None:
    """Raises AttachError where FSDP or DeepSpeed share the model out in a way in which it is not kept."""
    state = trainer.accelerator.state
    fsdp, deepspeed = getattr(state, "fsdp_plugin", None), getattr(state, "deepspeed_plugin", None)
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
    """Raises AttachError where this version of transformers has another Trainer."""
    loop = loop_of(trainer)
    engine = loop.methods_of_engine if trainer.is_deepspeed_enabled else ()
    names = (*_LOADERS, _SAVER, *loop.methods, *engine)
    _check([name for name in names if not callable(getattr(trainer, name, None))])


def check_numbers(trainer: Any) -> None:
    """The same, once the training begins."""
    _check([name for name in (*_NUMBERS, *loop_of(trainer).numbers) if not hasattr(trainer, name)])


def _check(missing: list[str]) -> None:
    if missing:
        import transformers  # noqa: PLC0415 - for its version

        refuse(
            f"cannot keep this Trainer: transformers {transformers.__version__} has no Trainer.{missing[0]}, by which"
            " a training is moved to where it was; without ft.transformers.wrap() it runs as always"
        )


def numbers(trainer: Any) -> dict[str, Any]:
    """What a Trainer counts beside its TrainerState."""
    metrics = {name: _plain(vars(trainer)[name]) for name in _METRICS if name in vars(trainer)}
    counted = {name: getattr(trainer, name) for name in (*_NUMBERS, *_IN_SOME_VERSIONS) if hasattr(trainer, name)}
    return {"numbers": counted, "metrics": metrics, "rollouts": rollouts.state(trainer)}


def loss_sum(trainer: Any) -> Any:
    """The tensor to which the losses since the last log are added. It is there while the Trainer is in its loop."""
    return loop_of(trainer).loss_sum(trainer)


def put_back_numbers(trainer: Any, saved: Mapping[str, Any]) -> None:
    """Put back what `numbers` has said."""
    for name, value in saved["numbers"].items():
        setattr(trainer, name, value)
    for name, value in saved["metrics"].items():
        _refill(trainer, name, value)
    rollouts.put_back(trainer, saved["rollouts"])


def _plain(value: Any) -> Any:
    return {key: _plain(one) for key, one in value.items()} if isinstance(value, dict) else value


def _refill(trainer: Any, name: str, value: Any) -> None:
    """Dictionaries stay what they are: TRL's make a list for a name that they do not know."""
    kept = getattr(trainer, name)
    if not isinstance(kept, dict):
        setattr(trainer, name, value)
        return
    for key, one in value.items():
        if isinstance(kept.get(key), dict):
            kept[key].clear()
            kept[key].update(one)
        else:
            kept[key] = one


def put_first(trainer: Any, callback: TrainerCallback) -> None:
    """Have `callback` called before all others: at a boundary none of them has begun the next step."""
    trainer.add_callback(callback)
    callbacks = trainer.callback_handler.callbacks
    callbacks.insert(0, callbacks.pop())


def begins_at(trainer: Any, place: tuple[int, int] | None, told: Told) -> AbstractContextManager[None]:
    """Within it the next training begins in a pass over the data, behind so many batches of it.

    place: None where the Trainer finds it itself. told: called with the place, once nothing is read from the
    checkpoint any more; perhaps not where that is the beginning.
    """
    return loop_of(trainer).begins_at(trainer, place, told)


def around_saves(trainer: Any, around: Callable[[], Any]) -> None:
    """Have the Trainer's own checkpoints saved within `around()`."""
    save = getattr(trainer, _SAVER)

    def save_within(*args: Any, **kwargs: Any) -> Any:
        with around():
            return save(*args, **kwargs)

    setattr(trainer, _SAVER, save_within)


@contextmanager
def position(trainer: Any, state: Mapping[str, Any], *, over: bool) -> Iterator[tempfile.TemporaryDirectory[str]]:
    """A checkpoint to resume from that says where the training is, and holds no tensors: attach() brings them.

    It can be cleaned up as soon as the training begins. state: of a TrainerState. over: no step is left to be made.
    Then it says a position behind the last epoch, and the Trainer goes straight to what it does behind its loop.
    """
    written = {**state, "global_step": _BEYOND if over else state["global_step"]}
    engine = loop_of(trainer).engine_loads_nothing(trainer) if trainer.is_deepspeed_enabled else nullcontext()
    with engine, instead(trainer, {name: partial(_load_nothing, name) for name in _LOADERS}):
        directory = tempfile.TemporaryDirectory(prefix="ftlaunch-position-")
        with directory:
            Path(directory.name, TRAINER_STATE_NAME).write_text(json.dumps(written))
            yield directory


def _load_nothing(name: str, *args: Any, **kwargs: Any) -> None:
    """attach() restores what the method `name` would load."""


def fields_of(state: Any) -> dict[str, Any]:
    """A TrainerState's fields, but for what is saved apart: the history, and the callbacks."""
    apart = ("log_history", "stateful_callbacks")
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(state) if field.name not in apart}

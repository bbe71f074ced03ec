"""What of an engine is attached, and which engines are refused.

One step of the job is one step of the engine's optimizer, with all micro batches that it gathers. What is private in
DeepSpeed is touched in _check, _plain_numbers, _random_tracker and shared_parameters.py. The masters and the shares of
ZeRO 1 and 2 lie in the parameter groups of the optimizer within the engine's, where attach() finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from deepspeed.runtime.activation_checkpointing import checkpointing

import ftlaunch_hooks as ft
from ftlaunch_hooks.adapters.deepspeed.shared_parameters import SharedParameters
from ftlaunch_hooks.adapters.refusal import check_first, check_members, refuse, take_replicated
from ftlaunch_hooks.adapters.tried_versions import say_if_newer

_KNOWN = "DeepSpeed 0.18 and 0.19"
_NAME = "deepspeed"
_OF_ENGINE = (
    "module optimizer lr_scheduler basic_optimizer global_steps global_samples micro_steps skipped_steps"
    " gradient_accumulation_steps zero_optimization_stage has_moe_layers mp_world_size"
)
_COUNTS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")
_ZERO_3 = "DeepSpeedZeroOptimizer_Stage3"
_SHARED_OUT = ("BF16_Optimizer", "DeepSpeedZeroOptimizer", _ZERO_3)  # each rank steps a share of the parameters
_WRAPPERS = (*_SHARED_OUT, "FP16_Optimizer", "FP16_UnfusedOptimizer")
_SCALERS = ("loss_scaler", "loss_scale_config")
_INNER = ("FusedAdam", "FusedLamb", "FusedLion", "DeepSpeedCPUAdam", "DeepSpeedCPUAdagrad", "DeepSpeedCPULion")
_REFUSED = {  # attributes of the engine, or methods that tell whether an option is set
    "zero_offload_optimizer": "the optimizer's state lies in files of DeepSpeed's; allowed is the device `cpu`",
    "zero_offload_param": "parameters lie in files of DeepSpeed's; allowed is the device `cpu`",
    "has_moe_layers": "experts have optimizers' shares of their own",
    "progressive_layer_drop": "what progressive layer drop counts is not saved",
    "curriculum_enabled_legacy": "where the curriculum is is not saved",
    "curriculum_learning_enabled": "where the curriculum is is not saved",
    "random_ltd_enabled": "where random layerwise token dropping is is not saved",
    "eigenvalue_enabled": "eigenvalues are not saved",
    "quantizer": "what the quantizer counts is not saved",
    "zero_quantized_weights": "quantized weights are not tried here",
    "zenflow": "ZenFlow steps beside the training",
}


def attach(engine: Any, **more: Any) -> ft.Job:
    """Attach the engine's model, optimizer, scheduler and counts. Call it behind deepspeed.initialize(), once.

    more: further objects, as ft.attach() takes them. Raises AttachError for what cannot be kept safe, and what
    ft.attach() raises.
    """
    check_first("ft.deepspeed.attach()")
    say_if_newer()
    objects, replicated = kept(engine, lambda: _gathered_here(engine))
    replicated += take_replicated(more)
    return ft.attach(**objects, **more, replicated=replicated)


def kept(engine: Any, gathered: Callable[[], int]) -> tuple[dict[str, Any], list[str]]:
    """What ft.attach() is given of an engine: its objects by their names, and which of them are replicated.

    gathered: tells how many micro batches the step under way has had; 0 between steps. Raises AttachError for what
    cannot be kept safe.
    """
    _check(engine)
    counts = _Counts(engine, gathered)
    if (point := ft.peek(_NAME)) is not None:
        counts.check_layout(point[1]["layout"])
    return {**_objects(engine), _NAME: counts}, _replicated(engine)


# --- what is known of an engine -----------------------------------------------------------------------------


def _check(engine: Any) -> None:
    """Raises AttachError for an engine that is not known, or has moved."""
    if (kind := type(engine).__name__) != "DeepSpeedEngine":
        refuse(f"cannot attach to a {kind}: allowed is the DeepSpeedEngine that deepspeed.initialize() returns")
    check_members(engine, _OF_ENGINE, _KNOWN)
    for name, why in _REFUSED.items():
        if _is_set(engine, name):
            refuse(f"cannot attach: `{name}` of the engine is set: {why}")
    if engine.mp_world_size != 1:
        refuse("cannot attach: DeepSpeed's own tensor parallelism is not supported here yet")
    _check_optimizer(engine.optimizer)


def _check_optimizer(optimizer: Any) -> None:
    inner = _inner(optimizer)
    kind, within = type(optimizer).__name__, type(inner)
    if inner is not optimizer and kind not in _WRAPPERS:
        refuse(f"cannot attach: the engine's optimizer is a {kind}; known are {', '.join(_WRAPPERS)}")
    if not isinstance(inner, torch.optim.Optimizer):
        refuse("cannot attach: the engine has no optimizer; give deepspeed.initialize() one")
    if not f"{within.__module__}.".startswith("torch.optim.") and within.__name__ not in _INNER:
        refuse(
            f"cannot attach: {within.__name__} may keep what is not in its state; known are torch's own optimizers and"
            f" {', '.join(_INNER)}"
        )


def _kind(engine: Any) -> str:
    return type(engine.optimizer).__name__


def _is_set(engine: Any, name: str) -> bool:
    found = getattr(engine, name, None)
    value = found() if callable(found) and not isinstance(found, torch.nn.Module) else found
    device = getattr(value, "device", None)  # to which it is offloaded: what lies in memory is found where it lies
    return bool(value) and getattr(device, "value", device) not in ("none", "cpu")


def _inner(optimizer: Any) -> Any:
    """The optimizer that steps: DeepSpeed's have it in themselves."""
    return optimizer if isinstance(optimizer, torch.optim.Optimizer) else getattr(optimizer, "optimizer", None)


def _objects(engine: Any) -> dict[str, Any]:
    if _kind(engine) == _ZERO_3:
        objects: dict[str, Any] = {"shares": SharedParameters(engine)}
    else:
        objects = {"model": engine.module, "optimizer": _inner(engine.optimizer)}
    if engine.lr_scheduler is not None:
        objects["scheduler"] = engine.lr_scheduler
    for holder, name in ((engine, "torch_autocast_z0_gradscaler"), (engine.optimizer, "torch_autocast_gradscaler")):
        if (scaler := getattr(holder, name, None)) is not None:
            objects["scaler"] = scaler
    return objects


def _replicated(engine: Any) -> list[str]:
    """What the engine keeps equal on all ranks: one of them saves it for all."""
    if _kind(engine) == _ZERO_3:
        return []
    return ["model"] if _kind(engine) in _SHARED_OUT else ["model", "optimizer"]


def _gathered_here(engine: Any) -> int:
    """Micro batches since the engine's last step."""
    managed = getattr(engine, "managed_gradient_accumulation", lambda: True)()  # before 0.19 each engine gathers
    over = engine.micro_steps % engine.gradient_accumulation_steps() if managed else 0
    return int(over or getattr(engine, "_unmanaged_backward_count", 0))


# --- what an engine counts ----------------------------------------------------------------------------------


def _plain_numbers(target: Any) -> dict[str, Any]:
    """The attributes of a loss scaler that are numbers."""
    held = vars(target) if target is not None else {}
    return {name: value for name, value in held.items() if value is None or isinstance(value, (bool, int, float))}


def _random_tracker() -> dict[str, Any]:
    """The states of the tracker of random numbers that DeepSpeed's activation checkpointing has, by name."""
    return dict(checkpointing.get_cuda_rng_tracker().get_states())


class _Counts:
    """What an engine counts, and its loss scale: an object to attach."""

    def __init__(self, engine: Any, gathered: Callable[[], int]) -> None:
        """gathered: see `kept`."""
        self._engine, self._gathered = engine, gathered
        self.keeps_variables = [f"engine.{name}" for name in _COUNTS]

    def state_dict(self) -> dict[str, Any]:
        """At a boundary. Raises AttachError where gradients are still being gathered."""
        self._check_gathered()
        engine = self._engine
        return {
            "layout": self._layout(),
            "counts": {name: getattr(engine, name) for name in _COUNTS},
            "scale": {name: _plain_numbers(getattr(engine.optimizer, name, None)) for name in _SCALERS},
            "random": _random_tracker(),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """The engine goes on counting."""
        for name, value in saved["counts"].items():
            setattr(self._engine, name, value)
        for name, values in saved["scale"].items():
            for attribute, value in values.items():
                setattr(getattr(self._engine.optimizer, name), attribute, value)
        if saved["random"]:
            checkpointing.get_cuda_rng_tracker().set_states({**saved["random"]})

    def check_layout(self, saved: Mapping[str, Any]) -> None:
        """Raises AttachError where the state was shared out otherwise."""
        if saved != (now := self._layout()):
            said = " now, and was ".join(f"{one['optimizer']} with {one['shares']} shares" for one in (now, saved))
            refuse(f"cannot resume: the engine's optimizer is {said}; start as it was, or with --fresh")

    def _layout(self) -> dict[str, Any]:
        """What the shares of the ranks depend on."""
        kind = _kind(self._engine)
        return {"optimizer": kind, "shares": torch.distributed.get_world_size() if kind in _SHARED_OUT else 1}

    def _check_gathered(self) -> None:
        """The gradients of micro batches lie where only the engine finds them."""
        if over := self._gathered():
            every = self._engine.gradient_accumulation_steps()
            refuse(
                f"cannot save: the engine has had {over} of {every} micro batches of a step; let one step of the loop"
                f" make all {every}, engine.backward() and engine.step() for each"
            )

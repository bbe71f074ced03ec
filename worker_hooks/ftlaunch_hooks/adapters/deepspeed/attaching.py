"""Choose what is attached of a DeepSpeed engine, and refuse engines that cannot be kept safe.

One step of the job is one step of the engine's optimizer, with all micro batches that it accumulates. The master
weights and partitions of ZeRO 1 and 2 lie in the parameter groups of the optimizer within the engine's optimizer, where
attach() finds them. Only _check, _plain_numbers, _random_tracker and shared_parameters.py touch what is private in
DeepSpeed. The adapters for Accelerate and Transformers call `kept`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from deepspeed.runtime.activation_checkpointing import checkpointing

import ftlaunch_hooks as ft
from ftlaunch_hooks.adapters.deepspeed.shared_parameters import SharedParameters
from ftlaunch_hooks.adapters.refusal import check_first, check_members, pop_replicated, refuse
from ftlaunch_hooks.adapters.tried_versions import say_if_newer

_KNOWN = "DeepSpeed 0.18 and 0.19"
_NAME = "deepspeed"
_OF_ENGINE = (
    "module optimizer lr_scheduler basic_optimizer global_steps global_samples micro_steps skipped_steps"
    " gradient_accumulation_steps zero_optimization_stage has_moe_layers mp_world_size"
)
_COUNTS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")
_ZERO_3 = "DeepSpeedZeroOptimizer_Stage3"
_PARTITIONED = ("BF16_Optimizer", "DeepSpeedZeroOptimizer", _ZERO_3)  # each rank steps a part of the parameters
_WRAPPERS = (*_PARTITIONED, "FP16_Optimizer", "FP16_UnfusedOptimizer")
_SCALERS = ("loss_scaler", "loss_scale_config")
_INNER = ("FusedAdam", "FusedLamb", "FusedLion", "DeepSpeedCPUAdam", "DeepSpeedCPUAdagrad", "DeepSpeedCPULion")
_REFUSED = {  # attributes or methods of the engine that are true if an option is set -> why that cannot be kept
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
    """Attach the engine's model, optimizer, scheduler and counters. Call this once, after deepspeed.initialize().

    Args:
        engine: the DeepSpeedEngine.
        more: further objects and options, as ft.attach() takes them.

    Returns:
        The job.

    Raises:
        AttachError: something cannot be kept safe or restored.
    """
    check_first("ft.deepspeed.attach()")
    say_if_newer()
    objects, replicated = kept(engine, lambda: _gathered_here(engine))
    replicated += pop_replicated(more)
    return ft.attach(**objects, **more, replicated=replicated)


def kept(engine: Any, gathered: Callable[[], int]) -> tuple[dict[str, Any], list[str]]:
    """Return what an adapter gives to ft.attach() for an engine.

    Args:
        engine: the DeepSpeedEngine.
        gathered: returns the number of micro batches that the unfinished step has accumulated; 0 between steps.

    Returns:
        The objects by name, and the names of those that are equal on all ranks.

    Raises:
        AttachError: the engine cannot be kept safe, or its state was partitioned differently.
    """
    _check(engine)
    counts = _Counts(engine, gathered)
    if (point := ft.peek(_NAME)) is not None:
        counts.check_layout(point[1]["layout"])
    return {**_objects(engine), _NAME: counts}, _replicated(engine)


# --- what is known of an engine -----------------------------------------------------------------------------


def _check(engine: Any) -> None:
    """Raise AttachError for an engine of an unknown kind or with an option that cannot be kept."""
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
    """Raise AttachError for an optimizer that is unknown, as such, or within DeepSpeed's."""
    inner = _inner(optimizer)
    kind = type(optimizer).__name__
    within = type(inner)
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
    """Whether the option behind an attribute or method of the engine is set. Offloading to memory does not count."""
    found = getattr(engine, name, None)
    value = found() if callable(found) and not isinstance(found, torch.nn.Module) else found
    device = getattr(value, "device", None)  # of an option to offload: attach() finds what is offloaded to memory
    return bool(value) and getattr(device, "value", device) not in ("none", "cpu")


def _inner(optimizer: Any) -> Any:
    """Return the optimizer that steps, which DeepSpeed's optimizers wrap."""
    return optimizer if isinstance(optimizer, torch.optim.Optimizer) else getattr(optimizer, "optimizer", None)


def _objects(engine: Any) -> dict[str, Any]:
    """Return what is attached besides the counters, by name."""
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
    """Return the names of objects that the engine keeps equal on all ranks, so that one rank saves them for all."""
    if _kind(engine) == _ZERO_3:
        return []
    return ["model"] if _kind(engine) in _PARTITIONED else ["model", "optimizer"]


def _gathered_here(engine: Any) -> int:
    """Return the number of micro batches since the engine's last step."""
    managed = getattr(engine, "managed_gradient_accumulation", lambda: True)()  # before 0.19 every engine does this
    over = engine.micro_steps % engine.gradient_accumulation_steps() if managed else 0
    return int(over or getattr(engine, "_unmanaged_backward_count", 0))


# --- what an engine counts ----------------------------------------------------------------------------------


def _plain_numbers(target: Any) -> dict[str, Any]:
    """Return the attributes of a loss scaler that are numbers or None, by name."""
    held = vars(target) if target is not None else {}
    return {name: value for name, value in held.items() if value is None or isinstance(value, (bool, int, float))}


def _random_tracker() -> dict[str, Any]:
    """Return the states of the generators of DeepSpeed's activation checkpointing, by name."""
    return dict(checkpointing.get_cuda_rng_tracker().get_states())


class _Counts:
    """The counters of an engine and its loss scale: an object to attach."""

    def __init__(self, engine: Any, gathered: Callable[[], int]) -> None:
        """Take an engine, and the function that `kept` describes."""
        self._engine = engine
        self._gathered = gathered
        self.keeps_variables = [f"engine.{name}" for name in _COUNTS]

    def state_dict(self) -> dict[str, Any]:
        """Return the state at a boundary. Raises AttachError while gradients are being accumulated."""
        self._check_gathered()
        engine = self._engine
        return {
            "layout": self._layout(),
            "counts": {name: getattr(engine, name) for name in _COUNTS},
            "scale": {name: _plain_numbers(getattr(engine.optimizer, name, None)) for name in _SCALERS},
            "random": _random_tracker(),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore the counters, the loss scale and the generators."""
        for name, value in saved["counts"].items():
            setattr(self._engine, name, value)
        for name, values in saved["scale"].items():
            for attribute, value in values.items():
                setattr(getattr(self._engine.optimizer, name), attribute, value)
        if saved["random"]:
            checkpointing.get_cuda_rng_tracker().set_states({**saved["random"]})

    def check_layout(self, saved: Mapping[str, Any]) -> None:
        """Raise AttachError if the state was partitioned differently."""
        now = self._layout()
        if saved != now:
            refuse(
                f"cannot resume: the engine's optimizer is {now['optimizer']} with {now['shares']} shares now, and was"
                f" {saved['optimizer']} with {saved['shares']} shares; start as it was, or with --fresh"
            )

    def _layout(self) -> dict[str, Any]:
        """Return the kind of optimizer and the number of parts, which determine how the state is partitioned."""
        kind = _kind(self._engine)
        return {"optimizer": kind, "shares": torch.distributed.get_world_size() if kind in _PARTITIONED else 1}

    def _check_gathered(self) -> None:
        """Raise AttachError while gradients are being accumulated, which only the engine knows how to find."""
        if over := self._gathered():
            every = self._engine.gradient_accumulation_steps()
            refuse(
                f"cannot save: the engine has had {over} of {every} micro batches of a step; let one step of the loop"
                f" make all {every}, engine.backward() and engine.step() for each"
            )

"""Read and change the private parts of Megatron-LM and Megatron-core.

Only this module, rerun.py and shards.py touch private parts, and refuse versions that lack them. Megatron-LM itself is
not needed: a script's own loop over Megatron-core has no arguments that would have to be restored.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from megatron.core import parallel_state, tensor_parallel
from torch import nn

from ftlaunch_hooks.adapters.easyckpt.merging import DATA_PARALLEL
from ftlaunch_hooks.adapters.refusal import check_members, refuse

KNOWN = "Megatron-core 0.16"
_OPTIMIZERS = ("FP32Optimizer", "Float16OptimizerWithFloat16Params", "DistributedOptimizer")
_GROUPS = (
    "tensor_model_parallel", "pipeline_model_parallel", "context_parallel", "expert_model_parallel",
    "expert_tensor_parallel",
)  # fmt: skip
_COUNTS = ("consumed_train_samples", "skipped_train_samples", "consumed_valid_samples", "consumed_train_bins")
_LAYERS = ("TransformerLayer", "MambaLayer")
_STACKS = ("TransformerBlock", "MambaStack")
_MICRO_BATCH = "current_microbatch"  # attribute of layers that Megatron's schedules set
_FLOPS = "num_floating_point_operations_so_far"
_REFUSED_OF_OPTIMIZER = {
    "use_precision_aware_optimizer": "its master weights lie where this adapter does not look",
    "optimizer_cpu_offload": "its state lies where this adapter does not look",
    "overlap_param_gather": "weights are gathered behind the step, and at its end they are those of two steps",
}
_REFUSED_OF_MODEL = {"fp8": "scales of FP8 are not tried here", "fp4": "scales of FP4 are not tried here"}


# --- Megatron-LM's own training loop ------------------------------------------------------------------------


def _checkpointing() -> Any:
    """Return Megatron-LM's module of checkpoints, of either layout of its releases; None without Megatron-LM."""
    return sys.modules.get("megatron.training.checkpointing") or sys.modules.get("megatron.checkpointing")


def arguments() -> Any:
    """Return Megatron-LM's arguments, in which it also counts samples; None without Megatron-LM."""
    module = _checkpointing()
    return None if module is None else module.get_args()


def check_arguments(given: Any) -> None:
    """Raise AttachError for an argument of Megatron-LM that conflicts with the hooks."""
    if getattr(given, "exit_signal_handler", False):
        refuse(
            "cannot attach: --exit-signal-handler takes SIGTERM for itself, by which a job is told to stop; leave it"
            " out, SIGTERM saves the last step without it"
        )


def variables() -> list[str]:
    """Return the names of variables of Megatron-LM's train() that a MegatronTraining restores."""
    return ["iteration", _FLOPS, *(f"args.{name}" for name in ("iteration", *_COUNTS, _FLOPS))]


def counts() -> dict[str, Any]:
    """Return the counters among Megatron-LM's arguments, by name."""
    given = arguments()
    return {name: getattr(given, name) for name in _COUNTS if hasattr(given, name)}


def put_back_counts(saved: Mapping[str, Any]) -> None:
    """Restore the counters that `counts` returned, before Megatron-LM makes its loaders from these."""
    given = arguments()
    if given is None:
        return
    for name, value in saved.items():
        setattr(given, name, value)
    if "consumed_train_samples" in saved:
        _checkpointing().update_num_microbatches(consumed_samples=saved["consumed_train_samples"])


def load_own(model: Any, optimizer: Any, scheduler: Any, load_arg: str, strict: bool, more: Any) -> tuple[int, Any]:
    """Call Megatron-LM's own load_checkpoint().

    Returns:
        The iteration and the number of floating point operations so far, both 0 without a checkpoint or without
        Megatron-LM.
    """
    module = _checkpointing()
    if module is None:
        return 0, 0
    loaded = module.load_checkpoint(model, optimizer, scheduler, load_arg=load_arg, strict=strict, **more)
    return loaded if isinstance(loaded, tuple) else (loaded, 0)


def as_returned(iteration: int, operations: Any) -> Any:
    """Return what load_checkpoint() returns in this release of Megatron-LM: in older ones the iteration alone."""
    module = _checkpointing()
    older = module is not None and _FLOPS not in inspect.signature(module.save_checkpoint).parameters
    return iteration if older else (iteration, operations)


def operations_in(names: Mapping[str, Any]) -> Any:
    """Return the number of floating point operations that train() has counted, given train()'s local variables."""
    return names.get(_FLOPS, 0)


# --- Megatron-core ------------------------------------------------------------------------------------------


def optimizers_of(optimizer: Any) -> list[Any]:
    """Return the optimizers within Megatron's that have something to step. Raises AttachError for an unknown one."""
    chained = optimizer.chained_optimizers if type(optimizer).__name__ == "ChainedOptimizer" else [optimizer]
    for inner in chained:
        if (kind := type(inner).__name__) not in _OPTIMIZERS:
            refuse(f"cannot attach: {kind} is not known here; known are {', '.join(_OPTIMIZERS)}")
        check_members(inner, "optimizer config", KNOWN)
        _refuse_set(inner.config, _REFUSED_OF_OPTIMIZER)
    return [inner for inner in chained if inner.optimizer is not None]


def check_model(model: Sequence[nn.Module]) -> None:
    """Raise AttachError for a model whose state cannot be kept."""
    for chunk in model:
        if "FullyShard" in (kind := type(chunk).__name__):
            refuse(f"cannot attach: a model in {kind} is not supported here yet")
        _refuse_set(getattr(chunk, "config", None), _REFUSED_OF_MODEL)
        _refuse_set(getattr(chunk, "ddp_config", None), _REFUSED_OF_OPTIMIZER)


def _refuse_set(config: Any, refused: Mapping[str, str]) -> None:
    """Raise AttachError if an option of a config is set.

    Args:
        config: the config, or None.
        refused: why each option cannot be kept, by name.
    """
    for name, why in refused.items():
        if getattr(config, name, None):
            refuse(f"cannot attach: `{name}` is set: {why}")


def layers_of(model: Sequence[nn.Module]) -> list[Any]:
    """Return the layers in which Megatron's schedules set the number of the next micro batch."""
    layers = [layer for chunk in model for layer in chunk.modules()]
    return [layer for layer in layers if any(kind.__name__ in _LAYERS for kind in type(layer).__mro__)]


def stacks_of(model: Sequence[nn.Module]) -> list[nn.Module]:
    """Return the stacks of layers, in which pipeline schedules leave the input that the stage before has sent."""
    return [module for chunk in model for module in chunk.modules() if type(module).__name__ in _STACKS]


def micro_batches(layers: Sequence[Any]) -> list[int | None]:
    """Return the number of the micro batch that was last set in each layer, or None."""
    return [getattr(layer, _MICRO_BATCH, None) for layer in layers]


def put_back_micro_batches(layers: Sequence[Any], saved: Sequence[int | None]) -> None:
    """Restore the numbers that `micro_batches` returned."""
    for layer, number in zip(layers, saved, strict=True):
        if number is not None:
            setattr(layer, _MICRO_BATCH, number)


def layout() -> dict[str, int]:
    """Return how the model is distributed over ranks.

    Returns:
        The size of each kind of group by its name, this rank's place in it as `<name>_rank`, and the number of all
        ranks as `ranks`.
    """
    sizes = _of_groups("world_size")
    places = {f"{name}_rank": place for name, place in _of_groups("rank").items()}
    places[DATA_PARALLEL] = parallel_state.get_data_parallel_rank()
    return {**sizes, **places, "ranks": torch.distributed.get_world_size()}


def _of_groups(what: str) -> dict[str, int]:
    """Return the `world_size` or the `rank` in each kind of group that this version of Megatron-core has."""
    asked = {name: getattr(parallel_state, f"get_{name}_{what}", None) for name in _GROUPS}
    return {name: ask() for name, ask in asked.items() if ask is not None}


def rank() -> int:
    """Return the rank of this process in the job."""
    return torch.distributed.get_rank()


def is_reduced(model: Sequence[nn.Module]) -> bool:
    """Whether Megatron's DistributedDataParallel reduces all gradients over the group of their parameter."""
    return all(type(chunk).__name__ == "DistributedDataParallel" for chunk in model)


def ranks_alike(parameter: Any) -> list[int]:
    """Return the ranks that keep a parameter equal, because Megatron reduces its gradients over them."""
    if getattr(parameter, "allreduce", True):
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    else:  # the parameter belongs to an expert
        group = parallel_state.get_expert_data_parallel_group()
    return torch.distributed.get_process_group_ranks(group)


def masters_of(optimizer: Any) -> dict[int, Any]:
    """Return the parameters by the id() of the FP32 copies that an optimizer steps in their place."""
    if type(optimizer).__name__ != "Float16OptimizerWithFloat16Params":
        return {}
    check_members(optimizer, "float16_groups fp32_from_float16_groups", KNOWN)
    copies = chain.from_iterable(optimizer.fp32_from_float16_groups)
    return dict(zip(map(id, copies), chain.from_iterable(optimizer.float16_groups), strict=True))


def is_distributed(optimizer: Any) -> bool:
    """Whether an optimizer steps only a part of the parameters on each rank."""
    return type(optimizer).__name__ == "DistributedOptimizer"


def random_states() -> dict[str, Any]:
    """Return the states of the generators of Megatron's tracker, by name."""
    states = tensor_parallel.get_cuda_rng_tracker().get_states()
    return {name: held.get_state() if isinstance(held, torch.Generator) else held for name, held in states.items()}


def put_back_random_states(saved: Mapping[str, Any]) -> None:
    """Restore the states that `random_states` returned."""
    tracker = tensor_parallel.get_cuda_rng_tracker()
    now = tracker.get_states()
    for name, state in saved.items():
        if isinstance(now.get(name), torch.Generator):
            now[name].set_state(state)
        else:
            now[name] = state.clone()
    tracker.set_states(now)


def evaluates_at(iteration: int) -> int:
    """Return the interval of Megatron-LM's evaluations if one is due at `iteration`, and 0 otherwise."""
    given = arguments()
    every = getattr(given, "eval_interval", None) or 0
    return every if every and getattr(given, "do_valid", True) and iteration % every == 0 else 0

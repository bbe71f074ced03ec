"""What the adapter touches of Megatron-LM and Megatron-core: here, in rerun.py and in shards.py alone, and checked.

Megatron-LM's own package is not needed: a loop of one's own over Megatron-core has no arguments to be put back.
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
_TOLD = "current_microbatch"
_FLOPS = "num_floating_point_operations_so_far"
_REFUSED_OF_OPTIMIZER = {
    "use_precision_aware_optimizer": "its master weights lie where this adapter does not look",
    "optimizer_cpu_offload": "its state lies where this adapter does not look",
    "overlap_param_gather": "weights are gathered behind the step, and at its end they are those of two steps",
}
_REFUSED_OF_MODEL = {"fp8": "scales of FP8 are not tried here", "fp4": "scales of FP4 are not tried here"}


# --- Megatron-LM's own training loop ------------------------------------------------------------------------


def _checkpointing() -> Any:
    """Megatron-LM's module of checkpoints, where its releases have it; None in a script without Megatron-LM."""
    return sys.modules.get("megatron.training.checkpointing") or sys.modules.get("megatron.checkpointing")


def arguments() -> Any:
    """Megatron-LM's arguments, among which it counts samples; None in a script without Megatron-LM."""
    module = _checkpointing()
    return None if module is None else module.get_args()


def check_arguments(given: Any) -> None:
    """Raises AttachError for an argument of Megatron-LM's that a resumed run could not follow."""
    if getattr(given, "exit_signal_handler", False):
        refuse(
            "cannot attach: --exit-signal-handler takes SIGTERM for itself, by which a job is told to stop; leave it"
            " out, SIGTERM saves the last step without it"
        )


def variables() -> list[str]:
    """What of the variables of Megatron-LM's train() a MegatronTraining brings back."""
    return ["iteration", _FLOPS, *(f"args.{name}" for name in ("iteration", *_COUNTS, _FLOPS))]


def counts() -> dict[str, Any]:
    """What Megatron-LM counts among its arguments."""
    given = arguments()
    return {name: getattr(given, name) for name in _COUNTS if hasattr(given, name)}


def put_back_counts(saved: Mapping[str, Any]) -> None:
    """Put back what `counts` has said, before Megatron-LM makes its loaders by it."""
    given = arguments()
    if given is None:
        return
    for name, value in saved.items():
        setattr(given, name, value)
    if "consumed_train_samples" in saved:
        _checkpointing().update_num_microbatches(consumed_samples=saved["consumed_train_samples"])


def load_own(model: Any, optimizer: Any, scheduler: Any, load_arg: str, strict: bool, more: Any) -> tuple[int, Any]:
    """Megatron-LM's load_checkpoint(): the iteration, and the number of operations so far. Nothing there: 0."""
    module = _checkpointing()
    if module is None:
        return 0, 0
    loaded = module.load_checkpoint(model, optimizer, scheduler, load_arg=load_arg, strict=strict, **more)
    return loaded if isinstance(loaded, tuple) else (loaded, 0)


def as_returned(iteration: int, operations: Any) -> Any:
    """What Megatron-LM's load_checkpoint() returns in the release that runs: older ones return the iteration alone."""
    module = _checkpointing()
    older = module is not None and _FLOPS not in inspect.signature(module.save_checkpoint).parameters
    return iteration if older else (iteration, operations)


def operations_in(names: Mapping[str, Any]) -> Any:
    """How many operations train() has counted. names: the variables of the function that has called."""
    return names.get(_FLOPS, 0)


# --- Megatron-core ------------------------------------------------------------------------------------------


def optimizers_of(optimizer: Any) -> list[Any]:
    """Megatron's optimizers that have something to step. Raises AttachError for one that is not known."""
    chained = optimizer.chained_optimizers if type(optimizer).__name__ == "ChainedOptimizer" else [optimizer]
    for one in chained:
        if (kind := type(one).__name__) not in _OPTIMIZERS:
            refuse(f"cannot attach: {kind} is not known here; known are {', '.join(_OPTIMIZERS)}")
        check_members(one, "optimizer config", KNOWN)
        _refuse_set(one.config, _REFUSED_OF_OPTIMIZER)
    return [one for one in chained if one.optimizer is not None]


def check_model(model: Sequence[nn.Module]) -> None:
    """Raises AttachError for a model whose state is not kept here."""
    for chunk in model:
        if "FullyShard" in (kind := type(chunk).__name__):
            refuse(f"cannot attach: a model in {kind} is not supported here yet")
        _refuse_set(getattr(chunk, "config", None), _REFUSED_OF_MODEL)
        _refuse_set(getattr(chunk, "ddp_config", None), _REFUSED_OF_OPTIMIZER)


def _refuse_set(config: Any, refused: Mapping[str, str]) -> None:
    for name, why in refused.items():
        if getattr(config, name, None):
            refuse(f"cannot attach: `{name}` is set: {why}")


def layers_of(model: Sequence[nn.Module]) -> list[Any]:
    """The layers to which Megatron's schedules tell, in an attribute, which micro batch comes."""
    layers = [layer for chunk in model for layer in chunk.modules()]
    return [layer for layer in layers if any(kind.__name__ in _LAYERS for kind in type(layer).__mro__)]


def stacks_of(model: Sequence[nn.Module]) -> list[nn.Module]:
    """Stacks of layers: the schedules of a pipeline leave in each, before it runs, what the stage before has sent."""
    return [module for chunk in model for module in chunk.modules() if type(module).__name__ in _STACKS]


def micro_batches(layers: Sequence[Any]) -> list[int | None]:
    """What the layers were told last, if anything."""
    return [getattr(layer, _TOLD, None) for layer in layers]


def put_back_micro_batches(layers: Sequence[Any], saved: Sequence[int | None]) -> None:
    """Put back what `micro_batches` has said."""
    for layer, number in zip(layers, saved, strict=True):
        if number is not None:
            setattr(layer, _TOLD, number)


def layout() -> dict[str, int]:
    """How many ranks share the model out, by kind of group, and this rank's place in each."""
    sizes = _of_groups("world_size")
    places = {f"{name}_rank": place for name, place in _of_groups("rank").items()}
    places[DATA_PARALLEL] = parallel_state.get_data_parallel_rank()
    return {**sizes, **places, "ranks": torch.distributed.get_world_size()}


def _of_groups(what: str) -> dict[str, int]:
    asked = {name: getattr(parallel_state, f"get_{name}_{what}", None) for name in _GROUPS}
    return {name: ask() for name, ask in asked.items() if ask is not None}


def rank() -> int:
    """Of this process in the job."""
    return torch.distributed.get_rank()


def is_reduced(model: Sequence[nn.Module]) -> bool:
    """Whether Megatron's DistributedDataParallel reduces all gradients, over the group that a parameter has."""
    return all(type(chunk).__name__ == "DistributedDataParallel" for chunk in model)


def ranks_alike(parameter: Any) -> list[int]:
    """The ranks whose gradients of a parameter Megatron reduces together: they keep it equal."""
    if getattr(parameter, "allreduce", True):
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    else:  # an expert's
        group = parallel_state.get_expert_data_parallel_group()
    return torch.distributed.get_process_group_ranks(group)


def masters_of(optimizer: Any) -> dict[int, Any]:
    """The id of an FP32 copy of a parameter, which an optimizer steps in the parameter's place -> the parameter."""
    if type(optimizer).__name__ != "Float16OptimizerWithFloat16Params":
        return {}
    check_members(optimizer, "float16_groups fp32_from_float16_groups", KNOWN)
    copies = chain.from_iterable(optimizer.fp32_from_float16_groups)
    return dict(zip(map(id, copies), chain.from_iterable(optimizer.float16_groups), strict=True))


def is_distributed(optimizer: Any) -> bool:
    """Whether each rank steps a share of the parameters alone."""
    return type(optimizer).__name__ == "DistributedOptimizer"


def random_states() -> dict[str, Any]:
    """The states of Megatron's tracker of random numbers, by name."""
    states = tensor_parallel.get_cuda_rng_tracker().get_states()
    return {name: one.get_state() if isinstance(one, torch.Generator) else one for name, one in states.items()}


def put_back_random_states(saved: Mapping[str, Any]) -> None:
    """Put back what `random_states` has said."""
    tracker = tensor_parallel.get_cuda_rng_tracker()
    now = tracker.get_states()
    for name, state in saved.items():
        if isinstance(now.get(name), torch.Generator):
            now[name].set_state(state)
        else:
            now[name] = state.clone()
    tracker.set_states(now)


def evaluates_at(iteration: int) -> int:
    """The interval of Megatron-LM's evaluations where one is due at `iteration`, else 0."""
    given = arguments()
    every = getattr(given, "eval_interval", None) or 0
    return every if every and getattr(given, "do_valid", True) and iteration % every == 0 else 0

"""Checks what a script attaches, and makes of each object the matching part of a rank's state.

Called by `RankState` when attach() runs, before anything is saved or restored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

from ftlaunch_hooks.state import compiled_shapes, gradients, loop_variables
from ftlaunch_hooks.state.module import ModulePart
from ftlaunch_hooks.state.optimizer import OptimizerPart
from ftlaunch_hooks.state.parts import Names, OtherPart, Part, list_names
from ftlaunch_hooks.state.random_numbers.generators import kind_of
from ftlaunch_hooks.storage import saved_digests
from ftlaunch_hooks.tensors import memory_layout
from ftlaunch_hooks.tensors.ddp import bucket_layout
from ftlaunch_hooks.tensors.json_codec import StateError

RNG = "rng"
LOOPS = "epoch_loop"
# Entries of the state that every rank saves by itself, so that no attached object may have their names.
RESERVED_NAMES = {
    RNG: "random numbers",
    gradients.NAME: "gradients",
    bucket_layout.NAME: "DDP's buckets",
    memory_layout.NAME: "tensors' layouts",
    saved_digests.NAME: "objects' digests",
    compiled_shapes.NAME: "shapes of compiled code",
    LOOPS: "place in job.epochs()",
    loop_variables.NAME: "variables of the training loop",
}


def check_attachable(objects: Mapping[str, Any], frozen: Collection[str]) -> None:
    """Check what attach() was given.

    Raises:
        StateError: an object cannot be saved, a name is taken, or `frozen` names something that is not attached.
    """
    if unknown := set(frozen) - set(objects):
        raise StateError(f"cannot attach: frozen names {list_names(unknown)}, which is not an argument")
    for name, target in objects.items():
        _check(name, target)


def _check(name: str, target: Any) -> None:
    if kind_of(target) is not None:
        return
    if name in RESERVED_NAMES:
        raise StateError(f"cannot attach: `{name}` is the name of the {RESERVED_NAMES[name]}, which are always saved")
    required = ("state_dict", "load_state_dict")
    missing = [method for method in required if not callable(getattr(target, method, None))]
    if missing:
        methods = " and ".join(f"{method}()" for method in missing)
        raise StateError(f"cannot attach: argument `{name}` has no {methods}")
    if any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(target).__mro__):
        raise StateError(
            f"cannot attach: argument `{name}` is a ZeroRedundancyOptimizer, whose state_dict() is a collective; use "
            "torch.distributed.fsdp.fully_shard"
        )
    if isinstance(target, nn.Module) and any(
        type(module).__name__ == "FullyShardedDataParallel" for module in target.modules()
    ):
        raise StateError(
            f"cannot attach: argument `{name}` is under FullyShardedDataParallel, whose state_dict() is a "
            "collective; use torch.distributed.fsdp.fully_shard"
        )


def make_parts(objects: Mapping[str, Any], names: Names) -> dict[str, Part]:
    """Make the parts of a rank's state: modules, optimizers, others, each in the order given.

    Modules come first, because optimizers look up the names of their parameters.
    """
    parts: dict[str, Part] = {}
    for name, target in objects.items():
        if isinstance(target, nn.Module):
            parts[name] = ModulePart(name, target, names)
    for name, target in objects.items():
        if isinstance(target, torch.optim.Optimizer):
            parts[name] = OptimizerPart(name, target, names)
    for name, target in objects.items():
        if name not in parts:
            parts[name] = OtherPart(name, target)
    return parts

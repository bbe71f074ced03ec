"""Which parameters are the same on every rank: those under DistributedDataParallel over all ranks.

And whose optimizer state is: that of torch's own optimizers, which change every parameter on the rank they run on.
Of what other wrappers and optimizers do the script tells: attach(replicated=...).
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ftlaunch_hooks.tensors.json_codec import StateError

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"
# Communication hooks that leave the same gradients on every rank. Others may not (post_localSGD_hook does not).
_ALIKE = {
    (f"{_HOOKS}.default_hooks", "allreduce_hook"),
    (f"{_HOOKS}.default_hooks", "fp16_compress_hook"),
    (f"{_HOOKS}.default_hooks", "bf16_compress_hook"),
    (f"{_HOOKS}.powerSGD_hook", "powerSGD_hook"),
    (f"{_HOOKS}.powerSGD_hook", "batched_powerSGD_hook"),
}


def find_wrappers() -> list[DistributedDataParallel]:
    """All that is wrapped into DistributedDataParallel, or into a subclass of it.

    A wrapper knows its module and not the other way round, and either may be attached: this looks for wrappers among
    all live objects (about 20 ms).
    """
    kinds = _with_subclasses(DistributedDataParallel)
    return [candidate for candidate in gc.get_objects() if type(candidate) in kinds]


def replicated_parameters(
    world_size: int, objects: Mapping[str, Any] = MappingProxyType({}), named: Collection[str] = ()
) -> dict[int, nn.Parameter]:
    """id -> parameter, of every parameter that is kept equal over `world_size` ranks.

    By DistributedDataParallel, or as the script says of the attached objects that are `named`. Raises StateError for a
    name of anything but a module or an optimizer.
    """
    found: dict[int, nn.Parameter] = {}
    for name in named:
        if not isinstance(objects[name], (nn.Module, torch.optim.Optimizer)):
            raise StateError(f"cannot attach: replicated names {name!r}, which is no module and no optimizer")
        if isinstance(objects[name], nn.Module) and world_size > 1:
            found |= {id(parameter): parameter for parameter in objects[name].parameters()}
    if world_size == 1:
        return found
    for wrapper in find_wrappers():
        if wrapper.process_group.size() != world_size:  # replicas of a part of the ranks only
            continue
        if any((hook.__module__, hook.__qualname__) not in _ALIKE for hook, _ in wrapper._comm_hooks):
            continue
        ignored = set(wrapper.parameters_to_ignore)
        for name, parameter in wrapper.module.named_parameters():
            if name not in ignored:
                found[id(parameter)] = parameter
    return found


def updates_all_parameters(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step of this optimizer changes all of its parameters on the rank that makes it.

    torch's own optimizers do. Of any other nobody knows: it may hold state for all parameters and update those that are
    this rank's share (Muon). The functions that torch puts around a step (schedulers, profiler) change nothing of that.
    """
    if not f"{type(optimizer).__module__}.".startswith("torch.optim."):
        return False
    step: Any = optimizer.step
    while step is not None:
        function = getattr(step, "__func__", step)
        if not getattr(function, "__globals__", {}).get("__name__", "").startswith("torch."):
            return False
        step = getattr(function, "__wrapped__", None)
    return True


def _with_subclasses(kind: type) -> set[type]:
    kinds = {kind}
    subclass: type
    for subclass in kind.__subclasses__():
        kinds |= _with_subclasses(subclass)
    return kinds

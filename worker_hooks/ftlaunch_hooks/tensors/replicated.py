"""Finds parameters that several ranks keep equal: those under DistributedDataParallel, and those the script names.

The optimizer state of such parameters is equal, too, for torch's own optimizers, which change every parameter on the
rank they run on. For other wrappers and optimizers the script says so: attach(replicated=...). The script can also name
groups of ranks: beside tensor, pipeline or expert parallelism, the ranks of one data-parallel group hold the same.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ftlaunch_hooks.tensors.json_codec import StateError

RanksOf = Callable[[torch.Tensor], Collection[int]]
"""Returns the ranks of the job that keep a parameter equal."""
Said = Collection[str] | Mapping[str, RanksOf]
"""names of objects that are equal on all ranks, or on the ranks that a function returns: the argument of attach()"""


class Replicated(NamedTuple):
    """A parameter that several ranks keep equal."""

    parameter: torch.Tensor
    group: tuple[int, ...] = ()
    """the ranks that keep it equal, in order; empty: all ranks of the job"""


_AVERAGERS = "torch.distributed.algorithms.model_averaging.averagers"
_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"
# Communication hooks that leave the same gradients on every rank. Others may not (post_localSGD_hook does not).
_EXACT_HOOKS = {
    (f"{_HOOKS}.default_hooks", "allreduce_hook"),
    (f"{_HOOKS}.default_hooks", "fp16_compress_hook"),
    (f"{_HOOKS}.default_hooks", "bf16_compress_hook"),
    (f"{_HOOKS}.powerSGD_hook", "powerSGD_hook"),
    (f"{_HOOKS}.powerSGD_hook", "batched_powerSGD_hook"),
}


def find_wrappers() -> list[DistributedDataParallel]:
    """Return all live objects that are DistributedDataParallel or a subclass of it.

    A wrapper knows its module and not the other way round, and either may be attached. So this searches all live
    objects, which takes about 20 ms.
    """
    kinds = _with_subclasses(DistributedDataParallel)
    return [candidate for candidate in gc.get_objects() if type(candidate) in kinds]


def replicated_parameters(
    rank: int, world_size: int, objects: Mapping[str, Any] = MappingProxyType({}), said: Said = ()
) -> dict[int, Replicated]:
    """Return every parameter that this rank and others keep equal, by the parameter's id.

    DistributedDataParallel keeps parameters equal, or the script says so for attached objects. The name of an optimizer
    without a function only says that it steps all parameters, not that they are equal; a function says which ranks keep
    each parameter equal.

    Args:
        rank: this rank's number in the job.
        world_size: the number of the job's ranks.
        objects: name -> attached object.
        said: the argument `replicated` of attach().

    Raises:
        StateError: a name is not that of a module or an optimizer, or ranks cannot be a group of this rank's.
    """
    found: dict[int, Replicated] = {}
    for name in sorted(said):
        if not isinstance(objects[name], (nn.Module, torch.optim.Optimizer)):
            raise StateError(f"cannot attach: replicated names {name!r}, which is no module and no optimizer")
        for parameter in _parameters(objects[name], said) if world_size > 1 else ():
            ranks = said[name](parameter) if isinstance(said, Mapping) else range(world_size)
            group = _group(name, said=ranks, rank=rank, world_size=world_size)
            if len(group) != 1:  # one rank alone has no replica
                found[id(parameter)] = Replicated(parameter, group)
    if world_size == 1 or _averages_parameters():
        return found
    for wrapper in find_wrappers():
        if wrapper.process_group.size() != world_size:  # replicated over only some of the ranks
            continue
        if any((hook.__module__, hook.__qualname__) not in _EXACT_HOOKS for hook, _ in wrapper._comm_hooks):
            continue
        ignored = set(wrapper.parameters_to_ignore)
        for name, parameter in wrapper.module.named_parameters():
            if name not in ignored:
                found[id(parameter)] = Replicated(parameter)
    return found


def _averages_parameters() -> bool:
    """Whether a script averages parameters now and then (local SGD), so that between averagings each rank has its own.

    An averager does not know which parameters it averages.
    """
    if (averagers := sys.modules.get(_AVERAGERS)) is None:
        return False
    kinds = _with_subclasses(averagers.ModelAverager)
    return any(type(candidate) in kinds for candidate in gc.get_objects())


def _parameters(target: nn.Module | torch.optim.Optimizer, said: Said) -> Iterator[torch.Tensor]:
    """Return the parameters that an object says are equal: of an optimizer, only if a function names their ranks."""
    if isinstance(target, nn.Module):
        return target.parameters()
    return chain.from_iterable(group["params"] for group in target.param_groups if isinstance(said, Mapping))


def _group(name: str, said: Collection[int], rank: int, world_size: int) -> tuple[int, ...]:
    """Return the ranks that the script names, in order; empty for all ranks of the job. Raises StateError."""
    ranks = tuple(sorted(set(said)))
    if rank not in ranks or not (ranks[0] >= 0 and ranks[-1] < world_size):
        raise StateError(
            f"cannot attach: replicated says of a parameter of {name!r} that the ranks {list(ranks)} keep it equal;"
            f" rank {rank} must be one of them, and the job has {world_size} ranks"
        )
    return () if len(ranks) == world_size else ranks


def updates_all_parameters(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step of this optimizer changes all of its parameters on the rank that makes the step.

    torch's own optimizers do. Any other may hold state for all parameters but update only this rank's share, as Muon
    does. The functions that torch wraps around a step (schedulers, profiler) do not matter.
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

"""Finds communication hooks of DistributedDataParallel that keep state from step to step."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def parallel_modules(roots: list[nn.Module]) -> list[DistributedDataParallel]:
    """Return the modules under `roots` that are DistributedDataParallel, each once."""
    found = {id(module): module for root in roots for module in root.modules()}
    return [module for module in found.values() if isinstance(module, DistributedDataParallel)]


def stateful_hooks(modules: list[DistributedDataParallel], attached: list[object]) -> list[str]:
    """Return the names of communication hooks whose state is lost with the process, each once.

    Args:
        modules: the DistributedDataParallel wrappers.
        attached: objects that are saved already; a hook's state may be one of them.
    """
    found: dict[str, None] = {}
    for module in modules:
        for hook, state in module._comm_hooks:
            if not _is_constant(state) and not any(state is target for target in attached):
                found[getattr(hook, "__qualname__", type(hook).__name__)] = None
    return list(found)


def _is_constant(state: object) -> bool:
    """Whether a hook's state never changes: torch's own hooks without state get a process group, or None."""
    return state is None or isinstance(state, dist.ProcessGroup)

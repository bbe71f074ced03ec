"""Communication hooks of DistributedDataParallel, and which of them keep something from step to step."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def parallel_modules(roots: list[nn.Module]) -> list[DistributedDataParallel]:
    """What is wrapped into DistributedDataParallel, each once."""
    found = {id(module): module for root in roots for module in root.modules()}
    return [module for module in found.values() if isinstance(module, DistributedDataParallel)]


def stateful_hooks(modules: list[DistributedDataParallel], attached: list[object]) -> list[str]:
    """The names of communication hooks whose state is lost with the process: each once.

    attached: objects that are saved already; a hook's state may be one of them.
    """
    found: dict[str, None] = {}
    for module in modules:
        for hook, state in module._comm_hooks:
            if not _is_constant(state) and not any(state is target for target in attached):
                found[getattr(hook, "__qualname__", type(hook).__name__)] = None
    return list(found)


def _is_constant(state: object) -> bool:
    """torch's own hooks without state get a process group, or nothing."""
    return state is None or isinstance(state, dist.ProcessGroup)

"""Finds gradients that fully_shard keeps outside `parameter.grad` until they are reduced."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn


class UnreducedGradients:
    """Looks for unreduced gradients in all modules under fully_shard."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        """Search the root modules once for parts under fully_shard: fully_shard() is called before attach()."""
        self._groups = list(_groups(modules)) if "torch.distributed.fsdp" in sys.modules else []

    def find(self) -> str | None:
        """Return the name of a module or parameter that has unreduced gradients now; None where there is none."""
        for group in self._groups:
            if group._partial_reduce_output is not None:  # set_requires_all_reduce(False)
                return str(group._module_fqn)
            for parameter in group.fsdp_params:  # set_requires_gradient_sync(False)
                unsharded = getattr(parameter, "_unsharded_param", None)  # missing before the first forward
                accumulated = parameter.unsharded_accumulated_grad
                if accumulated is not None or (unsharded is not None and unsharded.grad is not None):
                    return str(parameter._param_fqn)
        return None


def _groups(modules: Iterable[nn.Module]) -> Iterator[Any]:
    """Yield the groups in which fully_shard handles parameters.

    They are private: torch has no public way to these gradients.
    """
    from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415 - half a second's import, where it is in use

    for root in modules:
        for module in root.modules():
            if isinstance(module, FSDPModule):
                state = module._get_fsdp_state()
                groups = getattr(state, "_fsdp_param_groups", None)  # a list since torch 2.13
                if groups is None and state._fsdp_param_group:
                    groups = [state._fsdp_param_group]
                yield from groups or []

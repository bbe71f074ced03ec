"""Gradients that fully_shard keeps beside its parameters until they are reduced: no parameter's `grad` shows them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn


class UnreducedGradients:
    """Of all modules under fully_shard, where there are any."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        """modules: roots. They are searched once: fully_shard() is called before attach()."""
        self._groups = list(_groups(modules)) if "torch.distributed.fsdp" in sys.modules else []

    def find(self) -> str | None:
        """The name of a module or parameter with such gradients now; None where there is none."""
        for group in self._groups:
            if group._partial_reduce_output is not None:  # set_requires_all_reduce(False)
                return str(group._module_fqn)
            for parameter in group.fsdp_params:  # set_requires_gradient_sync(False)
                whole = getattr(parameter, "_unsharded_param", None)  # not there before the first forward
                kept = parameter.unsharded_accumulated_grad
                if kept is not None or (whole is not None and whole.grad is not None):
                    return str(parameter._param_fqn)
        return None


def _groups(modules: Iterable[nn.Module]) -> Iterator[Any]:
    """The groups in which fully_shard handles parameters. Private: torch has no public way to these gradients."""
    from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415 - half a second's import, where it is in use

    for root in modules:
        for module in root.modules():
            if isinstance(module, FSDPModule):
                state = module._get_fsdp_state()
                groups = getattr(state, "_fsdp_param_groups", None)  # a list since torch 2.13
                yield from ([state._fsdp_param_group] if groups is None and state._fsdp_param_group else groups or [])

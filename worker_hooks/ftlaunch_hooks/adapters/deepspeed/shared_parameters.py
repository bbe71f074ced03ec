"""ZeRO 3: this rank's shares of the parameters, their masters, and the optimizer's state of them.

The parameters of the module are empty between two uses, and the optimizer's groups between two steps: neither can be
attached. What is private in DeepSpeed's optimizer of ZeRO 3 is touched here alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ftlaunch_hooks.adapters.refusal import check_members

_KNOWN = "DeepSpeed 0.18 and 0.19"
_OF_OPTIMIZER = (
    "optimizer fp16_groups fp16_partitioned_groups_flat fp32_partitioned_groups_flat persistent_parameters"
    " _unflatten_partitioned_parameters _partition_all_parameters"
)


class SharedParameters:
    """An object to attach in the place of the engine's module and optimizer."""

    def __init__(self, engine: Any) -> None:
        """Raises AttachError where DeepSpeed has another optimizer."""
        check_members(engine.optimizer, _OF_OPTIMIZER, _KNOWN)
        self._engine, self._sharer, self._inner = engine, engine.optimizer, engine.optimizer.optimizer

    def state_dict(self) -> dict[str, Any]:
        """At a boundary."""
        module, masters = self._engine.module, self._sharer.fp32_partitioned_groups_flat
        return {
            "masters": [master.detach() for master in masters],
            "optimizer": [dict(self._inner.state.get(master, {})) for master in masters],
            "groups": [{name: group[name] for name in group if name != "params"} for group in self._inner.param_groups],
            "frozen": [parameter.ds_tensor.detach() for parameter in self._frozen()],
            "buffers": dict(module.named_buffers()),
            "evaluating": [name for name, one in module.named_modules() if not one.training],
        }

    @torch.no_grad()
    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """On every rank: the small parameters that DeepSpeed keeps whole are gathered anew."""
        self._sharer._partition_all_parameters()
        self._load_shares(saved["masters"])
        for master, state in zip(self._sharer.fp32_partitioned_groups_flat, saved["optimizer"], strict=True):
            self._inner.state[master] = dict(state)
        for group, values in zip(self._inner.param_groups, saved["groups"], strict=True):
            group.update(values)
        for parameter, share in zip(self._frozen(), saved["frozen"], strict=True):
            parameter.ds_tensor.copy_(share)
        self._load_module(saved["buffers"], set(saved["evaluating"]))
        if whole := self._sharer.persistent_parameters:
            whole[0].all_gather(whole)

    def _load_shares(self, masters: list[Tensor]) -> None:
        live = zip(self._sharer.fp32_partitioned_groups_flat, self._sharer.fp16_partitioned_groups_flat, strict=True)
        for number, ((master, share), saved) in enumerate(zip(live, masters, strict=True)):
            master.data.copy_(saved)
            share.data.copy_(master.data)  # as the optimizer's step does
            self._sharer._unflatten_partitioned_parameters(number)

    def _load_module(self, buffers: Mapping[str, Tensor], evaluating: set[str]) -> None:
        module = self._engine.module
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])
        for name, one in module.named_modules():
            one.training = name not in evaluating

    def _frozen(self) -> list[Any]:
        """Parameters that no optimizer steps: each rank has its share of them, too."""
        stepped = set(map(id, chain.from_iterable(self._sharer.fp16_groups)))
        return [one for one in self._engine.module.parameters() if id(one) not in stepped]

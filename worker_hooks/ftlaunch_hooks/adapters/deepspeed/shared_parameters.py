"""Save and restore this rank's part of a model under ZeRO 3: parameters, master weights and the optimizer's state.

The module and the optimizer themselves cannot be attached, because the module's parameters are empty between two uses,
and the optimizer's groups between two steps. Only this module touches what is private in DeepSpeed's ZeRO 3.
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
    """The object that is attached in the place of the engine's module and optimizer."""

    def __init__(self, engine: Any) -> None:
        """Take an engine. Raises AttachError where this version's optimizer lacks a private part that is used."""
        check_members(engine.optimizer, _OF_OPTIMIZER, _KNOWN)
        self._engine = engine
        self._sharer = engine.optimizer
        self._inner = engine.optimizer.optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part at a boundary."""
        module = self._engine.module
        masters = self._sharer.fp32_partitioned_groups_flat
        return {
            "masters": [master.detach() for master in masters],
            "optimizer": [dict(self._inner.state.get(master, {})) for master in masters],
            "groups": [{name: group[name] for name in group if name != "params"} for group in self._inner.param_groups],
            "frozen": [parameter.ds_tensor.detach() for parameter in self._frozen()],
            "buffers": dict(module.named_buffers()),
            "evaluating": [name for name, submodule in module.named_modules() if not submodule.training],
        }

    @torch.no_grad()
    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore this rank's part, and gather the small parameters that DeepSpeed keeps whole.

        This is a collective: every rank calls it.
        """
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
        """Restore master weights, and parameters from these."""
        live = zip(self._sharer.fp32_partitioned_groups_flat, self._sharer.fp16_partitioned_groups_flat, strict=True)
        for number, ((master, share), saved) in enumerate(zip(live, masters, strict=True)):
            master.data.copy_(saved)
            share.data.copy_(master.data)  # the optimizer's step does the same
            self._sharer._unflatten_partitioned_parameters(number)

    def _load_module(self, buffers: Mapping[str, Tensor], evaluating: set[str]) -> None:
        """Restore buffers, and set the submodules named in `evaluating` to evaluation and others to training."""
        module = self._engine.module
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])
        for name, submodule in module.named_modules():
            submodule.training = name not in evaluating

    def _frozen(self) -> list[Any]:
        """Return the parameters that no optimizer steps. These are partitioned, too."""
        stepped = set(map(id, chain.from_iterable(self._sharer.fp16_groups)))
        return [parameter for parameter in self._engine.module.parameters() if id(parameter) not in stepped]

"""Save and restore the shards of Megatron's DistributedOptimizer under names that do not depend on the number of ranks.

Each rank steps a range of each parameter's values: for parameters of 16 bits a master copy of the range, for others a
view of the parameter. The range depends on the number of ranks that share a buffer. Only this module touches what is
private in the DistributedOptimizer; Shards refuses a version that lacks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ftlaunch_hooks.adapters.easyckpt.megatron.inside import KNOWN
from ftlaunch_hooks.adapters.easyckpt.merging import Merged, ReadState, merge
from ftlaunch_hooks.adapters.refusal import check_members, refuse

_OF_OPTIMIZER = (
    "optimizer data_parallel_group model_float16_groups model_fp32_groups shard_fp32_from_float16_groups"
    " shard_fp32_groups _get_model_param_range_map"
)
_OTHERWISE = (
    "cannot restore: the distributed optimizer shares `{key}` out between the ranks otherwise than when the job was"
    " saved ({what}: {then} then, {now} now); start with the settings of the buckets that it had, or with --fresh"
)
_UNNAMED = "cannot attach: the distributed optimizer steps a parameter that is in no part of the model"


class _Shard(NamedTuple):
    """The range of one parameter that this rank steps."""

    key: str
    """number of the model's part, a dot, and the parameter's name in that part"""
    span: list[int]
    """index of the range's first value in the flat parameter, and the index after its last"""
    group: int
    """number of the optimizer's parameter group"""
    tensor: Tensor
    """the values that the optimizer steps"""
    is_master: bool
    """whether `tensor` is a master copy, and not a view of the parameter, which the model saves"""


class Shards:
    """The shards of this rank, their slots and the options of parameter groups: attached instead of the optimizer."""

    def __init__(self, optimizer: Any, model: Sequence[nn.Module]) -> None:
        """Find the shards.

        Args:
            optimizer: Megatron's DistributedOptimizer.
            model: the parts of the model on this rank.

        Raises:
            AttachError: this version's optimizer lacks a private part that is used, or steps an unknown parameter.
        """
        check_members(optimizer, _OF_OPTIMIZER, KNOWN)
        self._inner = optimizer.optimizer
        self._shards = _shards_of(optimizer, model)
        self._ranks = torch.distributed.get_process_group_ranks(optimizer.data_parallel_group)
        self._merged: Merged | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state at a boundary.

        Its tensors are those that the optimizer steps, and not copies, because the collector recognises unchanged
        tensors by identity.
        """
        groups = self._inner.param_groups
        return {
            "ranks": self._ranks,
            "groups": [{name: group[name] for name in group if name != "params"} for group in groups],
            "shards": {shard.key: self._entry(shard) for shard in self._shards},
        }

    def _entry(self, shard: _Shard) -> dict[str, Any]:
        """Return the state of one shard."""
        found = {"range": shard.span, "group": shard.group, "state": self._inner.state.get(shard.tensor, {})}
        return {**found, "master": shard.tensor} if shard.is_master else found

    def merge(self, saved: Mapping[str, Any], read_state: ReadState) -> None:
        """Put this rank's shards together from those of another number of ranks, for the next load_state_dict().

        Args:
            saved: the state of the rank for which this rank stands.
            read_state: reads the state of a rank that saved.

        Raises:
            MergeError: the shards cannot be merged.
        """
        self._merged = merge({shard.key: shard.span for shard in self._shards}, saved["ranks"], read_state)

    @torch.no_grad()
    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore a saved state, or after `merge` the merged one. Raises AttachError if this rank has other shards."""
        merged = self._merged
        self._merged = None
        shards = saved["shards"]
        groups = dict(enumerate(saved["groups"]))
        if merged is not None:
            shards = merged.shards
            groups |= merged.groups
        self._check(shards, groups)
        for shard in self._shards:
            entry = shards[shard.key]
            if shard.is_master:
                shard.tensor.copy_(entry["master"])
            self._inner.state.pop(shard.tensor, None)
            if entry["state"]:
                self._inner.state[shard.tensor] = dict(entry["state"])
        for number, group in enumerate(self._inner.param_groups):
            held = group["params"]
            group.clear()
            group.update(groups[number], params=held)

    def _check(self, shards: Mapping[str, Any], groups: Mapping[int, Any]) -> None:
        """Raise AttachError if saved shards or parameter groups are not those of this rank."""
        if len(groups) != (count := len(self._inner.param_groups)):
            refuse(_OTHERWISE.format(key="all", what="parameter groups", then=len(groups), now=count))
        here = {shard.key: shard for shard in self._shards}
        for key in sorted(shards.keys() ^ here.keys()):
            part, none = ("a part", "none") if key in shards else ("none", "a part")
            refuse(_OTHERWISE.format(key=key, what="on this rank", then=part, now=none))
        for key, shard in here.items():
            before = _described(shards[key])
            now = _described(self._entry(shard))
            for what, then in before.items():
                if then != now[what]:
                    refuse(_OTHERWISE.format(key=key, what=what, then=then, now=now[what]))


def _described(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what must be equal in the saved and the present state of a shard, by the names for a sentence."""
    master = entry.get("master")
    copy = None if master is None else [str(master.dtype), *master.shape]
    return {"range": entry["range"], "parameter group": entry["group"], "master copy": copy}


def _shards_of(optimizer: Any, model: Sequence[nn.Module]) -> list[_Shard]:
    """Return the shards of an optimizer, first those with master copies. Raises AttachError."""
    names = {
        id(parameter): f"{number}.{name}"
        for number, chunk in enumerate(model)
        for name, parameter in chunk.named_parameters()
    }
    kinds = (
        (True, optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups),
        (False, optimizer.model_fp32_groups, optimizer.shard_fp32_groups),
    )
    found = []
    for is_master, parameters_of, tensors_of in kinds:
        for group, (parameters, tensors) in enumerate(zip(parameters_of, tensors_of, strict=True)):
            for parameter, tensor in zip(parameters, tensors, strict=True):
                if id(parameter) not in names:
                    refuse(_UNNAMED)
                span = optimizer._get_model_param_range_map(parameter)["param"]
                found.append(
                    _Shard(
                        key=names[id(parameter)],
                        span=[span.start, span.end],
                        group=group,
                        tensor=tensor,
                        is_master=is_master,
                    )
                )
    return found

"""Visits attributes of attached modules and optimizers that their state_dict() leaves out. The Survey calls it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ftlaunch_hooks.observe.reachable.kinds import is_torchs
from ftlaunch_hooks.observe.reachable.walk import LoopWalk
from ftlaunch_hooks.state.parts import kept_elsewhere


def visit_attached(walk: LoopWalk, objects: Mapping[str, Any], frozen: Mapping[str, nn.Module]) -> None:
    """Visit the attributes of modules, and of optimizers of the script's classes that have torch's state_dict().

    Args:
        walk: the walk that visits the values.
        objects: attached objects by name.
        frozen: attached modules whose tensors nobody saves; these tensors are visited, too.
    """
    passed_by = kept_elsewhere(objects)
    for name, target in objects.items():
        if isinstance(target, nn.Module):
            if name in frozen:
                walk.visit_tensors(name, target)
            walk.visit_attached_module(name, target, passed_by)
        elif isinstance(target, Optimizer) and not is_torchs(type(target)) and _leaves_to_torch(target):
            walk.visit_beside(name, target, _optimizer_attributes())


@functools.cache
def _optimizer_attributes() -> frozenset[str]:
    """Return the names of attributes that torch gives every optimizer.

    The first optimizer of a process imports much, so that this is not done at import.
    """
    plain = torch.optim.SGD([torch.zeros(1, device="cpu")])
    return frozenset({*vars(plain), "_opt_called"})  # a scheduler sets _opt_called


def _leaves_to_torch(target: Optimizer) -> bool:
    return type(target).state_dict is Optimizer.state_dict

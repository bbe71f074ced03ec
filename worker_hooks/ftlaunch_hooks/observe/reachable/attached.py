"""What attached modules and optimizers hold in attributes that their state_dict() leaves out, as part of the walk."""

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
    """Go through the attributes of modules, and of optimizers whose class leaves to torch what is saved of them.

    objects: as attach() takes them. frozen: those modules whose tensors nobody saves; they are looked at as well.
    """
    passed_by = kept_elsewhere(objects)
    for name, target in objects.items():
        if isinstance(target, nn.Module):
            if name in frozen:
                walk.visit_tensors(name, target)
            walk.visit_attached_module(name, target, passed_by)
        elif isinstance(target, Optimizer) and not is_torchs(type(target)) and _leaves_to_torch(target):
            walk.visit_beside(name, target, _of_optimizers())


@functools.cache
def _of_optimizers() -> frozenset[str]:
    """Attributes that torch gives every optimizer. Not at import: the first optimizer of a process imports much."""
    plain = torch.optim.SGD([torch.zeros(1, device="cpu")])
    return frozenset({*vars(plain), "_opt_called"})  # the last is a scheduler's


def _leaves_to_torch(target: Optimizer) -> bool:
    return type(target).state_dict is Optimizer.state_dict

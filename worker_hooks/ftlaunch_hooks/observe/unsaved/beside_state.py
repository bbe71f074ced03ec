"""What attached modules and optimizers hold in attributes that their state_dict() leaves out."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ftlaunch_hooks.observe.unsaved.value_looks import PLAIN
from ftlaunch_hooks.state.parts import kept_elsewhere

_OF_MODULES = frozenset(vars(nn.Module()))
_HOOKS_OF_MODULES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def beside_state(objects: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """name -> value, of classes that are not torch's and do not say themselves what is saved.

    Of modules without tensors and numbers: those are looked at where the state is collected, see tensors/attributes.py.
    objects: as attach() takes them.
    """
    kept = kept_elsewhere(objects)
    for name, target in objects.items():
        if isinstance(target, nn.Module):
            yield from _hooks(name, target)
            for inner, module in target.named_modules():
                if id(module) in kept:
                    continue
                if not _is_torchs(module) and type(module).get_extra_state is nn.Module.get_extra_state:
                    held = _beside(f"{name}.{inner}".rstrip("."), module, _OF_MODULES)
                    yield from ((path, one) for path, one in held if not isinstance(one, (Tensor, *PLAIN)))
                    yield type(module).__name__, type(module)
        elif isinstance(target, Optimizer) and not _is_torchs(target) and _takes_state_dict(target):
            yield from _beside(name, target, _of_optimizers())


@functools.cache
def _of_optimizers() -> frozenset[str]:
    """Attributes that torch gives every optimizer. Not at import: the first optimizer of a process imports much."""
    return frozenset({*vars(torch.optim.SGD([torch.zeros(1)])), "_opt_called"})  # the last is a scheduler's


def _is_torchs(target: object) -> bool:
    return type(target).__module__.startswith("torch.")


def _hooks(name: str, target: nn.Module) -> Iterator[tuple[str, Any]]:
    """Functions that run beside the training: what they enclose goes from step to step, too."""
    holders: list[tuple[str, object, Sequence[str]]]
    holders = [(f"{name}.{inner}".rstrip("."), one, _HOOKS_OF_MODULES) for inner, one in target.named_modules()]
    holders += [(f"{name}.{inner}", one, _HOOKS_OF_TENSORS) for inner, one in target.named_parameters()]
    for path, holder, kinds in holders:
        for kind in kinds:
            for hook in list((getattr(holder, kind) or {}).values()):
                yield f"{path}.{getattr(hook, '__name__', type(hook).__name__)}", hook


def _takes_state_dict(target: Optimizer) -> bool:
    """Whether it leaves to torch what is saved of it."""
    return type(target).state_dict is Optimizer.state_dict


def _beside(path: str, target: object, known: frozenset[str]) -> Iterator[tuple[str, Any]]:
    return ((f"{path}.{name}", held) for name, held in list(vars(target).items()) if name not in known)

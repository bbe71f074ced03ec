"""Choose the part of a Trainer's model that is saved: with peft's adapters only what is not frozen, else everything."""

from __future__ import annotations

import sys
import zlib
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

_SAMPLES = 16  # number of values of each frozen parameter that are part of a digest


class WithoutFrozen(nn.Module):
    """A model whose state_dict() leaves out frozen parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state of nn.Module.state_dict() without frozen parameters."""
        state = super().state_dict(*args, **kwargs)
        parameters = self.named_parameters(remove_duplicate=False)
        for name in [name for name, parameter in parameters if not parameter.requires_grad]:
            state.pop(name, None)
        return state

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Load a state without frozen parameters. It is not strict: attach() has compared the names."""
        return super().load_state_dict(state_dict, strict=False, assign=assign)


def part_of(model: nn.Module) -> nn.Module:
    """Return what is attached of a model, which may be wrapped by DDP."""
    return WithoutFrozen(model) if has_adapters(model) else model


def has_adapters(model: nn.Module) -> bool:
    """Whether peft has put adapters on a model."""
    peft = sys.modules.get("peft")
    return peft is not None and any(isinstance(module, peft.PeftModel) for module in model.modules())


def digest_of_frozen(model: nn.Module) -> int | None:
    """Return a digest by which another base model is recognised.

    The digest is taken from a few values of each frozen parameter. Where parameters are sharded this is a collective:
    all ranks must call it.

    Returns:
        The digest, or None for a model without adapters, all of which is saved.
    """
    if not has_adapters(model):
        return None
    digest = 0
    for parameter in model.parameters():
        if not parameter.requires_grad and parameter.numel():
            whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            values = whole.detach().reshape(-1)
            values = values[:: max(1, len(values) // _SAMPLES)].contiguous().cpu()
            digest = zlib.crc32(values.view(torch.uint8).numpy().tobytes(), digest)
    return digest

"""Which part of a Trainer's model is saved: all of it, or what is not frozen where peft has put adapters on a base."""

from __future__ import annotations

import sys
import zlib
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

_SAMPLES = 16  # values of each frozen parameter


class WithoutFrozen(nn.Module):
    """A model whose state_dict() leaves out the parameters that are frozen."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """See nn.Module."""
        state = super().state_dict(*args, **kwargs)
        parameters = self.named_parameters(remove_duplicate=False)
        for name in [name for name, parameter in parameters if not parameter.requires_grad]:
            state.pop(name, None)
        return state

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """See nn.Module; attach() has compared the names with those of `state_dict`."""
        return super().load_state_dict(state_dict, strict=False, assign=assign)


def part_of(model: nn.Module) -> nn.Module:
    """What is attached of a model, DDP-wrapped or not."""
    return WithoutFrozen(model) if has_adapters(model) else model


def has_adapters(model: nn.Module) -> bool:
    """Whether peft has put adapters on it."""
    peft = sys.modules.get("peft")
    return peft is not None and any(isinstance(module, peft.PeftModel) for module in model.modules())


def digest_of_frozen(model: nn.Module) -> int | None:
    """A number that tells another base model: of a few values of each frozen parameter. None where all is saved.

    Where these are sharded, all ranks must ask at the same time.
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

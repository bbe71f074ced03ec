"""A part of the model as it is held: torchtitan's state_dict() gathers fused weights from all ranks, and splits them.

That is made for checkpoints that other layouts of the model can read. At a boundary a rank may be alone, and what it
holds is what it needs again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule


class HeldState(nn.Module):
    """A module to attach in the place of a model part: its tensors under their own names, without hooks."""

    def __init__(self, part: nn.Module) -> None:
        """On all ranks at once: torchtitan's state_dict() is asked which buffers are saved."""
        super().__init__()
        self.part = part
        saved = part.state_dict().keys()
        self._buffer_names = [name for name, _ in part.named_buffers() if name in saved]

    def state_dict(self, *, keep_vars: bool = False, **_: Any) -> dict[str, Tensor]:  # type: ignore[override]
        """Parameters, and the buffers that are saved; `keep_vars` as in nn.Module.

        A forward pass without a backward pass, as validation makes it, leaves some parameters whole.
        """
        for module in self.part.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        buffers = dict(self.part.named_buffers())
        held: dict[str, Tensor] = dict(self.part.named_parameters(remove_duplicate=False))
        held |= {name: buffers[name] for name in self._buffer_names}
        return held if keep_vars else {name: tensor.detach() for name, tensor in held.items()}

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Copy what is not there yet. Raises KeyError for a tensor that is missing."""
        for name, tensor in self.state_dict(keep_vars=True).items():
            if state_dict[name] is not tensor:
                tensor.copy_(state_dict[name])

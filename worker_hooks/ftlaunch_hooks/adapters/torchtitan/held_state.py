"""Save a part of a torchtitan model as this rank holds it.

torchtitan's own state_dict() gathers fused weights from all ranks and splits them, for checkpoints that other layouts
of the model can read. A snapshot must not be a collective, because a rank may be alone at a boundary, and needs only
what the rank itself holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule


class HeldState(nn.Module):
    """The module that is attached in the place of a model part: the part's tensors by name, without hooks."""

    def __init__(self, part: nn.Module) -> None:
        """Find out which buffers are saved, by torchtitan's state_dict(). This is a collective."""
        super().__init__()
        self.part = part
        saved = part.state_dict().keys()
        self._buffer_names = [name for name, _ in part.named_buffers() if name in saved]

    def state_dict(self, *, keep_vars: bool = False, **_: Any) -> dict[str, Tensor]:  # type: ignore[override]
        """Return parameters and saved buffers by name. `keep_vars` is as in nn.Module.

        The part is resharded first, because a forward pass without a backward pass, as in validation, leaves some
        parameters whole.
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
        """Copy tensors that are not the part's own. Raises KeyError for a tensor that is missing."""
        for name, tensor in self.state_dict(keep_vars=True).items():
            if state_dict[name] is not tensor:
                tensor.copy_(state_dict[name])

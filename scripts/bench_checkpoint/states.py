"""What is trained while checkpoints are measured: the example job, or a model of a given size."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).parent.parent))
import train_gpt

_TENSORS = 64
_MIB = 1 << 20


class Flat(nn.Module):
    """A model with 64 matrices, used in turn, whose parameters and two AdamW moments together take `mib` MiB."""

    def __init__(self, mib: int) -> None:
        super().__init__()
        columns = mib * _MIB // (3 * 4 * _TENSORS * 1024)
        self.matrices = nn.ParameterList(nn.Parameter(torch.randn(1024, columns) / 32) for _ in range(_TENSORS))

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch of shape (batch, 1024) to a scalar."""
        return torch.stack([(x @ matrix).square().mean() for matrix in self.matrices]).mean()


class Trained:
    """The model and AdamW of one rank."""

    def __init__(self, what: str) -> None:
        """Build them. what: `gpt` for scripts/train_gpt.py at its size, or the MiB of model and optimizer state."""
        torch.manual_seed(1)
        if what == "gpt":
            self._args = argparse.Namespace(batch_size=6, block_size=96)
            self._text = train_gpt.load_text()[0]
            self.net: nn.Module = train_gpt.GPT(96, 4, 4, 128)
        else:
            self.net = Flat(int(what))
        self.what = what
        self.model = DistributedDataParallel(self.net) if dist.get_world_size() > 1 else self.net
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-4)
        self.step()  # creates AdamW's moments

    def step(self) -> None:
        """Make a step: forward, backward and optimizer."""
        if self.what == "gpt":
            inputs, targets = train_gpt.random_batch(self._text, self._args, torch.device("cpu"))
            loss = train_gpt.loss_of(self.model, inputs, targets)
        else:
            loss = self.model(torch.randn(4, 1024))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, object]:
        """Return what the other ways save: the state_dicts of the unwrapped model and of the optimizer."""
        return {"model": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}

    def tensors(self) -> list[Tensor]:
        """Return all tensors of the state."""
        found = [parameter.detach() for parameter in self.net.parameters()]
        for state in self.optimizer.state.values():
            found += [value for value in state.values() if isinstance(value, Tensor)]
        return found

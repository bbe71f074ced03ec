"""A Muon-like optimizer under DistributedDataParallel: each rank steps its share of the parameters and sends them on.

Exact: a rank saves the momentum that only it has.
"""

import torch
import torch.distributed as dist
from kit import RANK, WORLD, join, moment, report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ftlaunch_hooks as ft


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal by Newton-Schulz steps; parameter i is stepped by rank i modulo their number."""

    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for index, p in enumerate(group["params"]):
                if index % WORLD == RANK:
                    buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    buffer.lerp_(p.grad, 1 - group["momentum"])
                    p.add_(orthogonal(buffer), alpha=-group["lr"])
                dist.broadcast(p, src=index % WORLD)


def orthogonal(matrix, steps=3):
    x = matrix / (matrix.norm() + 1e-7)
    for _ in range(steps):
        x = 1.5 * x - 0.5 * x @ x.T @ x
    return x


RANKS = 2
join()
torch.manual_seed(20)
layers = (nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
model = DistributedDataParallel(nn.Sequential(*layers))
muon = Muon([p for p in model.parameters() if p.ndim == 2])
adamw = torch.optim.AdamW([p for p in model.parameters() if p.ndim < 2], lr=1e-2)
job = ft.attach(model=model, muon=muon, adamw=adamw)
torch.manual_seed(100 + RANK)
for step in job.steps(20):
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    moment(step, loss)
    for optimizer in (muon, adamw):
        optimizer.step()
        optimizer.zero_grad()
report(model=model, muon=muon, adamw=adamw)

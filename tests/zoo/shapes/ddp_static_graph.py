"""DistributedDataParallel with static_graph=True, activation checkpointing, BatchNorm buffers and dropout.

Exact.
"""

import torch
from kit import RANK, join, moment, report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import ftlaunch_hooks as ft


class Net(nn.Module):
    """Two layers, the first recomputed in backward."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU())
        self.norm, self.last = nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x):
        return self.last(self.norm(checkpoint(self.first, x, use_reentrant=False)))


RANKS = 2
join()
torch.manual_seed(42)
model = DistributedDataParallel(Net(), static_graph=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
job = ft.attach(model=model, optimizer=optimizer)
torch.manual_seed(100 + RANK)
for step in job.steps(20):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

"""DistributedDataParallel with find_unused_parameters: ranks use different branches of the model.

Exact.
"""

import torch
from kit import RANK, join, moment, report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ftlaunch_hooks as ft


class Branches(nn.Module):
    """A stem, and two heads of which one is used."""

    def __init__(self):
        super().__init__()
        self.stem, self.heads = nn.Linear(8, 16), nn.ModuleList(nn.Linear(16, 4) for _ in range(3))

    def forward(self, x, head):
        return self.heads[head](self.stem(x).relu())


RANKS = 2
join()
torch.manual_seed(41)
model = DistributedDataParallel(Branches(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
torch.manual_seed(100 + RANK)
for step in job.steps(20):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8), (step // 4 + RANK) % 3).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

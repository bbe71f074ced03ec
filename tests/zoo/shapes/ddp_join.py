"""DistributedDataParallel with uneven inputs: under Join, a rank that has no more batches shadows the others.

Under a supervisor the ranks train on; a restart goes back to the newest step of all ranks. Without one:

Refused: all ranks must make the same number of steps
"""

import torch
from kit import RANK, join, moment, report
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import ftlaunch_hooks as ft

RANKS = 2
join()
torch.manual_seed(44)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
torch.manual_seed(100 + RANK)
with Join([model]):
    for step in job.steps(20 - 3 * RANK):
        loss = model(torch.randn(16, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        moment(step, loss)
        optimizer.step()
report(model=model, optimizer=optimizer)

"""Local SGD under DistributedDataParallel: each rank trains by itself in no_sync(), and averages every fourth step.

Exact: the ranks find that they hold other values, and each saves its own.
"""

import torch
import torch.distributed as dist
from kit import RANK, WORLD, join, moment, report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ftlaunch_hooks as ft

RANKS = 2
join()
torch.manual_seed(60)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
job = ft.attach(model=model, optimizer=optimizer)
torch.manual_seed(160 + RANK)
for step in job.steps(20):
    with model.no_sync():
        loss = model(torch.randn(16, 8)).square().mean()
        loss.backward()
    moment(step, loss)
    optimizer.step()
    optimizer.zero_grad()
    if step % 4 == 3:
        with torch.no_grad():
            for parameter in model.parameters():
                dist.all_reduce(parameter)
                parameter.div_(WORLD)
report(model=model, optimizer=optimizer)

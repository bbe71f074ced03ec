"""DistributedDataParallel with gradient_as_bucket_view=True, accumulating; buckets are rebuilt after the first step.

Exact.
"""

import contextlib

import torch
from kit import RANK, join, moment, report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ftlaunch_hooks as ft

RANKS = 2
join()
torch.manual_seed(43)
layers = (nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
model = DistributedDataParallel(nn.Sequential(*layers), gradient_as_bucket_view=True, bucket_cap_mb=0.01)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
torch.manual_seed(100 + RANK)
for step in job.steps(20):
    last = step % 3 == 2
    with contextlib.nullcontext() if last else model.no_sync():
        loss = model(torch.randn(16, 8)).square().mean() / 3
        loss.backward()
    moment(step, loss)
    if last:
        optimizer.step()
        optimizer.zero_grad()
report(model=model, optimizer=optimizer)

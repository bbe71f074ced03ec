"""Gradient accumulation under DistributedDataParallel with no_sync(): each rank has gradients of its own.

Exact: every rank saves its own gradients.
"""

import contextlib

import torch
from kit import RANK, join, moment, report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ftlaunch_hooks as ft

RANKS = 2
join()
torch.manual_seed(3)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
torch.manual_seed(100 + RANK)
for step in job.steps(20):
    last = step % 4 == 3
    with contextlib.nullcontext() if last else model.no_sync():
        loss = model(torch.randn(16, 8)).square().mean() / 4
        loss.backward()
    moment(step, loss)
    if last:
        optimizer.step()
        optimizer.zero_grad()
report(model=model, optimizer=optimizer)

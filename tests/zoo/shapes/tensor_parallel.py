"""Tensor parallel: one layer split by columns, the next by rows, by parallelize_module.

Exact.
"""

import torch
from kit import MESH, join, moment, report
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import ftlaunch_hooks as ft

RANKS = 2
join()
torch.manual_seed(50)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.LayerNorm(4))
mesh = init_device_mesh(MESH, (RANKS,))
parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    loss = (model(torch.randn(16, 8)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

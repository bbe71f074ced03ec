"""fully_shard (FSDP2) with set_requires_gradient_sync(False): gradients stay whole and unreduced between the steps.

Refused: gradients that are not reduced yet
"""

import torch
from kit import MESH, RANK, join, moment, report
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ftlaunch_hooks as ft

RANKS = 2
join()
torch.manual_seed(49)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
fully_shard(model, mesh=init_device_mesh(MESH, (RANKS,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
torch.manual_seed(100 + RANK)
for step in job.steps(20):
    last = step % 4 == 3
    model.set_requires_gradient_sync(last)
    loss = model(torch.randn(16, 8)).square().mean() / 4
    loss.backward()
    moment(step, loss)
    if last:
        optimizer.step()
        optimizer.zero_grad()
report(model=model, optimizer=optimizer)

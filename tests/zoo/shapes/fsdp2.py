"""fully_shard (FSDP2) with accumulation: a reduced gradient is a shard, which the rank saves.

Exact.
"""

import torch
from kit import MESH, RANK, join, moment, report
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ftlaunch_hooks as ft

RANKS = 2
join()
torch.manual_seed(47)
model = nn.Sequential(nn.Linear(8, 15), nn.ReLU(), nn.Linear(15, 4))
mesh = init_device_mesh(MESH, (RANKS,))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
torch.manual_seed(100 + RANK)
for step in job.steps(20):
    loss = model(torch.randn(16, 8)).square().mean() / 2
    loss.backward()
    moment(step, loss)
    if step % 2:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
report(model=model, optimizer=optimizer)

"""fully_shard (FSDP2) over a mesh with replicas that begin with other values, as each rank seeds with its own number.

Exact: the ranks find that they hold other values, and each saves its own shard.
"""

import torch
from kit import MESH, RANK, join, moment, report
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ftlaunch_hooks as ft

RANKS = 4
join()
torch.manual_seed(47 + RANK)
model = nn.Sequential(nn.Linear(8, 15), nn.ReLU(), nn.Linear(15, 4))
mesh = init_device_mesh(MESH, (2, 2), mesh_dim_names=("replicate", "shard"))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
torch.manual_seed(100 + RANK)
for step in job.steps(20):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

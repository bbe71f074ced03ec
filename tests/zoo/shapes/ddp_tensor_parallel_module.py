"""DistributedDataParallel between pairs of tensor-parallel ranks, with the module attached that loses its parameters.

Refused: which was there at attach()
"""

import torch
from kit import MESH, join, moment
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import ftlaunch_hooks as ft

RANKS = 4
join()
torch.manual_seed(50)
mesh = init_device_mesh(MESH, (2, 2), mesh_dim_names=("data", "tensor"))
inner = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
parallelize_module(inner, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
model = DistributedDataParallel(inner, device_mesh=mesh["data"])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    loss = (model(torch.ones(16, 8)) - 1).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()

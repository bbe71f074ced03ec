"""DistributedDataParallel between two pairs of ranks, of which each shares the layers out by tensor parallelism.

torch takes the parameters out of the module at the first forward pass; the optimizer still has them.

Exact.
"""

import torch
from kit import MESH, RANK, join, moment, report
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
parameters = list(model.parameters())
job = ft.attach(optimizer=optimizer, ignore=["model", "inner"])
torch.manual_seed(100 + RANK // 2)  # the ranks of a pair are given the same batch
for step in job.steps(20):
    loss = (model(torch.randn(16, 8)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(parameters=parameters, optimizer=optimizer)

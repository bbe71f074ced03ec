"""Tensor parallel with a replicated layer whose values each rank draws by itself, and a bias that all ranks hold.

Exact: the ranks find that they hold other values, and each saves its own.
"""

import torch
from kit import MESH, RANK, join, moment, report
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import ftlaunch_hooks as ft

RANKS = 2
join()
torch.manual_seed(50)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
mesh = init_device_mesh(MESH, (RANKS,))
parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
torch.manual_seed(50 + RANK)
scale = nn.Parameter(DTensor.from_local(torch.rand(4), mesh, [Replicate()], run_check=False))
model.register_parameter("scale", scale)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
job = ft.attach(model=model, optimizer=optimizer)
torch.manual_seed(100)
for step in job.steps(20):
    loss = (model(torch.randn(16, 8)) * scale.to_local() - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

"""Tensor parallel in two pairs of ranks: each is a replica on a mesh of its own, and the script adds up gradients.

Exact.
"""

import torch
import torch.distributed as dist
from kit import MESH, RANK, join, moment, report
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import ftlaunch_hooks as ft

RANKS = 4
join()
torch.manual_seed(50)
mesh = init_device_mesh(MESH, (2, 2), mesh_dim_names=("data", "tensor"))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.LayerNorm(4))
parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
job = ft.attach(model=model, optimizer=optimizer)
torch.manual_seed(100 + RANK // 2)  # the ranks of a pair are given the same batch
for step in job.steps(20):
    loss = (model(torch.randn(16, 8)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    for parameter in model.parameters():
        gradient = parameter.grad.to_local() if hasattr(parameter.grad, "to_local") else parameter.grad
        dist.all_reduce(gradient, group=mesh["data"].get_group())
    optimizer.step()
report(model=model, optimizer=optimizer)

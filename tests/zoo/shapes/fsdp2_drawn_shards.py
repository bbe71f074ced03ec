"""fully_shard (FSDP2) whose shards get noise: DTensor draws it, and its first draw gives ranks the numbers of rank 0.

Exact: on an accelerator the resumed ranks do not do so again, though their own numbers differ by then.
"""

import torch
from kit import MESH, RANK, join, moment, report
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ftlaunch_hooks as ft

RANKS = 2
join()
torch.manual_seed(71)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 4))
mesh = init_device_mesh(MESH, (RANKS,))
for layer in (model[0], model[3]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
torch.manual_seed(100 + RANK)
for step in job.steps(20):
    inputs = torch.randn(16, 8)
    for _ in range(RANK):  # ranks do not draw equally often
        inputs += 0.1 * torch.randn(16, 8)
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=1e-3)
report(model=model, optimizer=optimizer)

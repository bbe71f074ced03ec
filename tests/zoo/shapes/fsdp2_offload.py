"""fully_shard (FSDP2) with CPUOffloadPolicy and a MixedPrecisionPolicy.

Exact.
"""

import torch
from kit import MESH, RANK, join, moment, report
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

import ftlaunch_hooks as ft

RANKS = 2
join()
torch.manual_seed(48)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
fully_shard(
    model,
    mesh=init_device_mesh(MESH, (RANKS,)),
    offload_policy=CPUOffloadPolicy(pin_memory=False),
    mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
torch.manual_seed(100 + RANK)
for step in job.steps(20):
    loss = model(torch.randn(16, 8)).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

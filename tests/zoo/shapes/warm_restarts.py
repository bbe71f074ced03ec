"""CosineAnnealingWarmRestarts, with gradient clipping and two data sets mixed by ResumableMixSampler.

Exact.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(78)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=4, T_mult=2)
sampler = ft.ResumableMixSampler([40, 20], [3, 1], 8, rank=0, world_size=1, seed=3)
job = ft.attach(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler)
data = torch.randn(60, 8)
for step, indices in zip(job.steps(20), sampler, strict=False):
    loss = model(data[indices]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    moment(step, loss)
    optimizer.step()
    scheduler.step()
report(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler)

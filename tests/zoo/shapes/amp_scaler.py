"""Mixed precision: autocast to bfloat16 with a GradScaler whose scale grows, and clipping of unscaled gradients.

Exact.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(24)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler(device="cpu", init_scale=2.0**10, growth_interval=4)
job = ft.attach(model=model, optimizer=optimizer, scaler=scaler)
for step in job.steps(20):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(16, 8)).float().square().mean()
    scaler.scale(loss).backward()
    moment(step, loss)
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
report(model=model, optimizer=optimizer, scaler=scaler)

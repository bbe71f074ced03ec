"""An average of the weights (EMA) in a deep copy, updated by lerp_.

Exact.
"""

import copy

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(13)
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
ema = copy.deepcopy(model).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, ema=ema, optimizer=optimizer)
for step in job.steps(20):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    with torch.no_grad():
        for average, weight in zip(ema.parameters(), model.parameters(), strict=True):
            average.lerp_(weight, 0.1)
        for average, buffer in zip(ema.buffers(), model.buffers(), strict=True):
            average.copy_(buffer)
report(model=model, ema=ema, optimizer=optimizer)

"""Gradient accumulation: every micro-batch is a step of the loop, the optimizer steps at every fourth.

Exact: the gradients of a boundary between two micro-batches are saved.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(2)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    loss = model(torch.randn(16, 8)).square().mean() / 4
    loss.backward()
    moment(step, loss)
    if step % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
report(model=model, optimizer=optimizer)

"""Lazy modules that are attached before their first forward pass.

Refused: a parameter that has no values yet
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(86)
model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

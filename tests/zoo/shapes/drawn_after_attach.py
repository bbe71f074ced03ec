"""Data and their order are drawn between attach() and the loop.

Exact: what a script draws there it draws at a resume as at its first start; the loop begins with the saved numbers.
"""

import random

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(91)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
data = list(torch.randn(40, 8))
random.shuffle(data)
for step in job.steps(20):
    batch = torch.stack(data[2 * step : 2 * step + 2])
    optimizer.zero_grad()
    loss = model(batch + 0.1 * torch.randn(2, 8)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer, data=data)

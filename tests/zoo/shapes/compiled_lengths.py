"""A compiled model that meets several lengths: the first of them is built into its first kernels.

Said: torch.compile has compiled code anew for other lengths
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(64)
model = torch.compile(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    length = 3 if step == 0 else 5 if step < 10 else 7
    loss = model(torch.randn(16, length, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

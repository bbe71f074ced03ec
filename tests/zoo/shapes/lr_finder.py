"""A learning rate finder: the script raises the rate in the optimizer's groups by hand, step after step.

Exact: the values of parameter groups are saved at every step.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(35)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] *= 1.5
        group["momentum"] = max(0.5, group["momentum"] - 0.01)
report(model=model, optimizer=optimizer)

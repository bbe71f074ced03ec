"""A scheduler that the script forgets to attach: the learning rate of the optimizer is saved, its place in it is not.

Exact: its attributes are found, saved and put back
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(47)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    scheduler.step()
report(model=model, optimizer=optimizer)

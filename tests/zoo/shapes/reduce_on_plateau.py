"""ReduceLROnPlateau: the learning rate follows a measured loss.

Exact.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(76)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1, cooldown=1)
job = ft.attach(model=model, optimizer=optimizer, scheduler=scheduler)
for step in job.steps(20):
    optimizer.zero_grad()
    loss = (model(torch.randn(16, 8)) - torch.randn(16, 4)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    scheduler.step(loss.item())
report(model=model, optimizer=optimizer, scheduler=scheduler)

"""A frozen teacher that was left in training mode: its running averages move, and nothing of it is saved.

Said: from step to step in `teacher`
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(97)
model = nn.Linear(8, 4)
teacher = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
job = ft.attach(model=model, teacher=teacher, optimizer=optimizer, frozen=["teacher"])
for step in job.steps(20):
    inputs = torch.randn(16, 8)
    teacher(inputs)
    loss = (model(inputs) - teacher[1].running_var).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

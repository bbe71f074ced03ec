"""A module that remembers its last inputs in a list, and sees them again.

Exact: the list is saved and put back
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class Remembers(nn.Module):
    """Adds the mean of the last three inputs."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen = [*self.seen[-2:], x.detach()]
        return x + torch.stack(self.seen).mean(0)


torch.manual_seed(71)
model = nn.Sequential(nn.Linear(8, 16), Remembers(), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

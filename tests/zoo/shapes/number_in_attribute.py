"""A module whose forward pass counts its calls in a plain number, and anneals by it.

Exact: numbers of attached modules that change are saved and put back
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class Annealed(nn.Module):
    """Noise that becomes less with every call."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x + torch.randn_like(x) / self.calls


torch.manual_seed(13)
model = nn.Sequential(nn.Linear(8, 16), Annealed(), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

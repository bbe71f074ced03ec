"""A module with state that is no tensor, by get_extra_state() and set_extra_state(): a temperature that it anneals.

Exact.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class Annealed(nn.Module):
    """Divides by a temperature that falls at every forward pass."""

    def __init__(self):
        super().__init__()
        self.temperature = 2.0

    def forward(self, x):
        self.temperature *= 0.97
        return x / self.temperature

    def get_extra_state(self):
        return {"temperature": self.temperature}

    def set_extra_state(self, state):
        self.temperature = state["temperature"]


torch.manual_seed(85)
model = nn.Sequential(nn.Linear(8, 16), Annealed(), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

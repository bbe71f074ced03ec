"""A mixture of experts: an expert that gets no token in a step has no gradient there, and no optimizer state at first.

Exact.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class MixtureOfExperts(nn.Module):
    """Each token goes to the expert that the router likes best."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(8, 6)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x):
        weight, choice = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            mine = choice == index
            if mine.any():
                out[mine] = expert(x[mine]) * weight[mine, None]
        return out


torch.manual_seed(31)
model = MixtureOfExperts()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    optimizer.zero_grad()
    loss = (model(torch.randn(3, 8)) - 1).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

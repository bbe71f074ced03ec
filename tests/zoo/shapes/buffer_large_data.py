"""A large buffer with persistent=False that is written through `.data` alone: a queue of keys.

Exact: a digest of its bytes tells that it changes, which no version counter does.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class Queue(nn.Module):
    """Compares with what it has seen before."""

    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(4096, 8), persistent=False)

    def forward(self, x):
        score = x @ self.keys.data[:64].clone().T
        self.keys.data[16:64] = self.keys.data[:48].clone()
        self.keys.data[:16] = x.detach()
        return score


torch.manual_seed(14)
model = nn.Sequential(nn.Linear(8, 8), Queue(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer, keys=model[1].keys)

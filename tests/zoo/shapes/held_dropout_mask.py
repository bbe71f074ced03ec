"""Variational dropout: a mask is drawn every fifth step and held between, in a buffer of the module.

Exact.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class HeldDropout(nn.Module):
    """Dropout with one mask for many batches."""

    def __init__(self, size, p):
        super().__init__()
        self.p = p
        self.register_buffer("mask", torch.ones(size))

    def draw(self):
        self.mask = torch.bernoulli(torch.full_like(self.mask, 1 - self.p)) / (1 - self.p)

    def forward(self, x):
        return x * self.mask


torch.manual_seed(73)
model = nn.Sequential(nn.Linear(8, 32), HeldDropout(32, 0.4), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    if step % 5 == 0:
        model[1].draw()
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

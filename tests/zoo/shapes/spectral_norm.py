"""Spectral normalisation, as a parametrization and as the older hook: its vectors move in every forward pass.

Exact.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(29)
model = nn.Sequential(
    nn.utils.parametrizations.spectral_norm(nn.Linear(8, 16)),
    nn.LeakyReLU(0.2),
    nn.utils.spectral_norm(nn.Linear(16, 1)),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

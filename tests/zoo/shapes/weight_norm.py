"""Weight normalisation by torch.nn.utils.parametrizations.weight_norm.

Exact.
"""

import torch
from kit import moment, report
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import ftlaunch_hooks as ft

torch.manual_seed(27)
model = nn.Sequential(weight_norm(nn.Linear(8, 16)), nn.Tanh(), weight_norm(nn.Linear(16, 4)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

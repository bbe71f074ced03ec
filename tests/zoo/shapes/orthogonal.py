"""A weight that stays orthogonal, by torch.nn.utils.parametrizations.orthogonal.

Exact.
"""

import torch
from kit import moment, report
from torch import nn
from torch.nn.utils.parametrizations import orthogonal

import ftlaunch_hooks as ft

torch.manual_seed(28)
model = nn.Sequential(orthogonal(nn.Linear(8, 8)), nn.Tanh(), orthogonal(nn.Linear(8, 8), "weight", "cayley"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    batch = torch.randn(16, 8)
    optimizer.zero_grad()
    loss = (model(batch) - batch.flip(1)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

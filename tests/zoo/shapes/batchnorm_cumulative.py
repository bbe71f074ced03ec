"""BatchNorm with momentum=None: its running averages are over all batches, which it counts.

Exact: buffers are saved, counts included.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(30)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16, momentum=None), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    model.train()
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        moment(step, model(torch.ones(4, 8)).square().mean())
report(model=model, optimizer=optimizer)

"""An embedding with max_norm: its forward pass shortens the rows that it looks up.

Exact.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(68)
model = nn.Sequential(nn.Embedding(2000, 200, max_norm=1.0), nn.Linear(200, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-1)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    loss = (model(torch.randint(2000, (64,))) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

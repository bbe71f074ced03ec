"""Two loops of steps() in one script, and data of the second one are drawn between them.

Exact: what was drawn there is in a variable, which is saved and put back as the second loop begins
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(15)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
data = torch.ones(16, 8)
for until in (10, 20):
    for step in job.steps(until):
        optimizer.zero_grad()
        loss = model(data + torch.randn(16, 8)).square().mean()
        loss.backward()
        moment(step, loss)
        optimizer.step()
    data = torch.randn(16, 8)
report(model=model, optimizer=optimizer)

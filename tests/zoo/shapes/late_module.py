"""A model that grows: a block is added in the middle of the run.

Refused: new since attach()
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(7)
model = nn.Sequential(nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    if step == 5:
        model.append(nn.Linear(8, 8))
        optimizer.add_param_group({"params": list(model[-1].parameters())})
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    optimizer.zero_grad()
report(model=model, optimizer=optimizer)

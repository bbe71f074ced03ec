"""Progressive regularisation: the probability of a Dropout and the momentum of a BatchNorm are changed once.

Exact: numbers of torch's own modules that change are saved and put back
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(96)
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Dropout(0.1), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    if step == 3:
        model[2].p, model[1].momentum = 0.5, 0.01
    loss = (model(torch.randn(16, 8)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

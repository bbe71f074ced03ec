"""An average of the weights (EMA) in a second module, written through `.data`, that the script forgets to attach.

Exact: its tensors are found, saved and put back
"""

import copy

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(61)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
average = copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    loss = (model(torch.randn(16, 8)) - average(torch.ones(16, 8)).detach()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
        mine.data.mul_(0.9).add_(theirs.data, alpha=0.1)
report(model=model, average=average, optimizer=optimizer)

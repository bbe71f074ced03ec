"""An average of the weights (EMA), updated through `.data`, which no version counter sees.

Exact.
"""

import copy

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(4)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
job = ft.attach(model=model, average=average, optimizer=optimizer)
for step in job.steps(20):
    loss = (model(torch.randn(16, 256)) - average(torch.randn(16, 256))).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    optimizer.zero_grad()
    for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
        mean.data.mul_(0.9).add_(weight.data, alpha=0.1)
report(model=model, average=average, optimizer=optimizer)

"""An average of the weights (EMA) in an object of an installed package, which the script forgets to attach.

Exact: its attributes are found, saved and put back
"""

import sys
from pathlib import Path

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

sys.path.insert(0, str(Path(__file__).parents[1] / "site-packages"))
from zoo_library import Average

torch.manual_seed(93)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
average = Average(model.parameters(), 0.9)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    loss = (model(torch.randn(16, 8)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    average.update(model.parameters())
report(model=model, average=average.shadow, optimizer=optimizer)

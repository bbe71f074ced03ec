"""A hook on a weight's gradient that averages it, with the average in its closure.

Exact: what a hook encloses is saved and put back
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


def smoothing():
    average = {}

    def smooth(gradient):
        average["it"] = 0.5 * average.get("it", gradient) + 0.5 * gradient
        return average["it"]

    return smooth


torch.manual_seed(79)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
model[0].weight.register_hook(smoothing())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

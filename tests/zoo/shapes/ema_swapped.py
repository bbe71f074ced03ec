"""An average of the weights (EMA) that is swapped into the model for every evaluation inside the loop.

Exact.
"""

import copy

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


def swap(model, ema):
    for weight, average in zip(model.parameters(), ema.parameters(), strict=True):
        weight.data, average.data = average.data, weight.data


torch.manual_seed(15)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
ema = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
job = ft.attach(model=model, ema=ema, optimizer=optimizer)
for step in job.steps(20):
    model.train()
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    for weight, average in zip(model.parameters(), ema.parameters(), strict=True):
        average.data.lerp_(weight.data, 0.1)
    if step % 3 == 2:
        model.eval()
        swap(model, ema)
        with torch.no_grad(), job.phase("eval"):
            model(torch.randn(16, 8))
        swap(model, ema)
report(model=model, ema=ema, optimizer=optimizer)

"""A model made on the meta device, given memory by to_empty(), and then initialised.

Exact.
"""

import torch
from kit import DEVICE, moment, report
from torch import nn

import ftlaunch_hooks as ft

with torch.device("meta"):
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
model.to_empty(device=DEVICE)
torch.manual_seed(65)
for layer in model:
    if hasattr(layer, "reset_parameters"):
        layer.reset_parameters()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

"""A model that is attached while it is still on the meta device.

Refused: a tensor on the meta device
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

with torch.device("meta"):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
job = ft.attach(model=model)
model.to_empty(device="cpu")
torch.manual_seed(66)
for layer in model:
    if hasattr(layer, "reset_parameters"):
        layer.reset_parameters()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in job.steps(20):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

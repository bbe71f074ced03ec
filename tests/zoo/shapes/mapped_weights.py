"""All weights are views of one file in /dev/shm, mapped by torch.from_file and shared.

Exact: weights are restored where they lie.
"""

import tempfile

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(67)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
    count = sum(p.numel() for p in model.parameters())
    file.truncate(4 * count)
    flat = torch.from_file(file.name, shared=True, size=count)
start = 0
for p in model.parameters():
    flat[start : start + p.numel()] = p.detach().flatten()
    p.data = flat[start : start + p.numel()].view(p.shape)
    start += p.numel()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer, flat=flat)

"""Tensors are made on another device where nothing says which: here on one that has no bytes at all.

Exact.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(91)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1)).to("cpu")
empty = torch.empty(0, device="cpu")
weights = torch.ones(4, 3, device="cpu").t()
torch.set_default_device("meta")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)  # AdamW would count its steps there
job = ft.attach(model=model, optimizer=optimizer)
lengths = []
for step in job.steps(20):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8, device="cpu")).square().mean() * weights.sum()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    weights = weights * 0.9
    lengths.append(step)
report(model=model, optimizer=optimizer, weights=weights, lengths=lengths)

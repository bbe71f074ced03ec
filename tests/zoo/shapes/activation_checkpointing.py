"""Activation checkpointing with dropout: a segment is computed again in backward, with the same random numbers.

Exact.
"""

import torch
from kit import moment, report
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import ftlaunch_hooks as ft

torch.manual_seed(53)
body = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.Dropout(0.2), nn.ReLU())))
head = nn.Linear(8, 4)
model = nn.ModuleDict({"body": body, "head": head})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    hidden = checkpoint_sequential(body, 2, torch.randn(16, 8), use_reentrant=False)
    loss = checkpoint(head, hidden, use_reentrant=False).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

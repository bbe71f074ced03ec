"""Augmentation drawn from NumPy's and Python's global random numbers, beside torch's.

Exact.
"""

import random

import numpy as np
import torch
from kit import DEVICE, moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(38)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    batch = torch.from_numpy(np.random.normal(size=(16, 8)).astype("float32")).to(DEVICE)
    if random.random() < 0.5:
        batch = batch.flip(1)
    batch = batch * random.gauss(1, 0.1) + torch.randn(16, 8) * 0.1
    optimizer.zero_grad()
    loss = model(batch[np.random.permutation(16)[:8]]).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

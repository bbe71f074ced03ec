"""A batch sampler of the script's own, which draws each batch from the process's generators, in mid-epoch too.

Exact: it draws from random numbers of its own, as training draws in between.
"""

import random

import torch
from kit import moment, report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ftlaunch_hooks as ft


class Buckets:
    """Batches of neighbours."""

    def __len__(self):
        return 7

    def __iter__(self):
        for _ in range(len(self)):
            start = int(torch.randint(0, 40, ()))
            yield random.sample(range(start, start + 16), 8)


torch.manual_seed(64)
loader = DataLoader(TensorDataset(torch.randn(60, 8), torch.randn(60, 4)), batch_sampler=Buckets())
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for _ in job.epochs(3):
    for inputs, targets in job.batches(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        moment(job.step, loss)
        optimizer.step()
report(model=model, optimizer=optimizer)

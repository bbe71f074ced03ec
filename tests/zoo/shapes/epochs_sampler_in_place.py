"""A sampler that shuffles the list that it holds: the order of each epoch depends on all epochs before.

Said: gives another order when it is asked again
"""

import random

import torch
from kit import moment, report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ftlaunch_hooks as ft


class InPlace:
    """Another order in each epoch."""

    def __init__(self):
        self.order = list(range(40))

    def __len__(self):
        return 40

    def __iter__(self):
        random.shuffle(self.order)
        return iter(self.order)


torch.manual_seed(68)
loader = DataLoader(TensorDataset(torch.randn(40, 8), torch.randn(40, 4)), batch_size=8, sampler=InPlace())
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for _ in job.epochs(4):
    for inputs, targets in job.batches(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        moment(job.step, loss)
        optimizer.step()
report(model=model, optimizer=optimizer)

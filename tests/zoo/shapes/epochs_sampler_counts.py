"""A sampler that counts its epochs itself, and holds a generator; transforms in a list draw from another one.

Exact: numbers among a sampler's attributes are saved, and generators are found in lists.
"""

import random

import torch
from kit import moment, report
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

import ftlaunch_hooks as ft


class Counting(Sampler):
    """Another order in each epoch."""

    def __init__(self):
        self.epoch, self.rng = 0, random.Random(4)

    def __len__(self):
        return 44

    def __iter__(self):
        self.epoch += 1
        order = list(range(44))
        random.Random(self.epoch).shuffle(order)
        self.rng.shuffle(order)
        return iter(order)


class Scaling:
    """Multiplies with a random number."""

    def __init__(self, rng):
        self.rng = rng

    def __call__(self, row):
        return row * self.rng.uniform(0.9, 1.1)


class Rows(Dataset):
    """Rows behind transforms."""

    def __init__(self):
        self.rows, self.transforms = torch.randn(44, 8), [Scaling(random.Random(6))]

    def __len__(self):
        return 44

    def __getitem__(self, index):
        row = self.rows[index]
        for transform in self.transforms:
            row = transform(row)
        return row


torch.manual_seed(67)
loader = DataLoader(Rows(), batch_size=8, sampler=Counting())
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for _ in job.epochs(3):
    for batch in job.batches(loader):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        moment(job.step, loss)
        optimizer.step()
report(model=model, optimizer=optimizer)

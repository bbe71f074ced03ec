"""Workers that live from epoch to epoch, and draw random numbers there; a collator draws as well.

Exact: each batch brings its seeds to the worker, however long that has lived.
"""

import random

import torch
from kit import DEVICE, keep_data_on_cpu, moment, report
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate

import ftlaunch_hooks as ft


class Rows(Dataset):
    """Rows with noise."""

    def __init__(self):
        self.rows = torch.randn(40, 8)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index] + 0.1 * torch.randn(8)


class Masks:
    """Sets some values to 0, by a generator of its own."""

    def __init__(self):
        self.rng = random.Random(5)

    def __call__(self, samples):
        batch = default_collate(samples)
        batch[:, self.rng.randrange(8)] = 0
        return batch


keep_data_on_cpu()
torch.manual_seed(53)
loader = DataLoader(Rows(), 8, shuffle=True, num_workers=2, persistent_workers=True, collate_fn=Masks())
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 1)).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for _ in job.epochs(4):
    for batch in job.batches(loader):
        optimizer.zero_grad()
        loss = model(batch.to(DEVICE)).square().mean()
        loss.backward()
        moment(job.step, loss)
        optimizer.step()
report(model=model, optimizer=optimizer)

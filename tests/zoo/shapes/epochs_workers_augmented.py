"""Augmentation in workers that read ahead: from the process's generators, and from one that the data set holds.

Exact: each batch brings its seeds to the worker, and what was had is not loaded again.
"""

import random

import numpy as np
import torch
from kit import DEVICE, keep_data_on_cpu, moment, report
from torch import nn
from torch.utils.data import DataLoader, Dataset

import ftlaunch_hooks as ft


class Rows(Dataset):
    """Rows with noise of all kinds."""

    def __init__(self):
        self.rows = torch.randn(44, 8)
        self.rng = random.Random(3)
        self.numpy_rng = np.random.default_rng(3)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        noise = random.random() + np.random.rand() + self.rng.random() + self.numpy_rng.random()
        return self.rows[index] + 0.1 * torch.randn(8) + 0.1 * noise


keep_data_on_cpu()
torch.manual_seed(52)
loader = DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=2, prefetch_factor=3)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 1)).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for _ in job.epochs(3):
    for batch in job.batches(loader):
        optimizer.zero_grad()
        loss = model(batch.to(DEVICE)).square().mean()
        loss.backward()
        moment(job.step, loss)
        optimizer.step()
report(model=model, optimizer=optimizer)

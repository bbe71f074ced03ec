"""ft.ResumableBatchSampler, attached, with workers: a pass ends with the epoch.

Exact: the sampler begins where it is, and its workers are seeded for each sample.
"""

import torch
from kit import DEVICE, keep_data_on_cpu, moment, report
from torch import nn
from torch.utils.data import DataLoader, Dataset

import ftlaunch_hooks as ft


class Rows(Dataset):
    """Rows with noise."""

    def __init__(self):
        self.rows = torch.randn(44, 8)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index] + 0.1 * torch.randn(8)


keep_data_on_cpu()
torch.manual_seed(66)
sampler = ft.ResumableBatchSampler(44, 8, rank=0, world_size=1, seed=5, tail="keep")
loader = DataLoader(Rows(), batch_sampler=sampler, num_workers=2)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 1)).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer, sampler=sampler)
for _ in job.epochs(3):
    for number, batch in enumerate(job.batches(loader)):
        optimizer.zero_grad()
        loss = model(batch.to(DEVICE)).square().mean() * (1 + number)
        loss.backward()
        moment(job.step, loss)
        optimizer.step()
report(model=model, optimizer=optimizer, sampler=sampler)

"""The commonest loop on a GPU: workers, pinned batches, copies to the device that do not block, a scheduler by epochs.

Exact: batches are loaded again by their numbers, and each brings its seeds to the worker.
"""

import torch
from kit import DEVICE, keep_data_on_cpu, moment, report
from torch import nn
from torch.utils.data import DataLoader, Dataset

import ftlaunch_hooks as ft


class Rows(Dataset):
    """Rows with noise, and their classes."""

    def __init__(self):
        self.rows = torch.randn(44, 8)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index] + 0.1 * torch.randn(8), index % 3


keep_data_on_cpu()
torch.manual_seed(68)
loader = DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=2, pin_memory=True, drop_last=True)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 3)).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
job = ft.attach(model=model, optimizer=optimizer, scheduler=scheduler)
for _ in job.epochs(4):
    for batch in job.batches(loader):
        inputs, classes = (tensor.to(DEVICE, non_blocking=True) for tensor in batch)
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(inputs), classes)
        loss.backward()
        moment(job.step, loss)
        optimizer.step()
    scheduler.step()
report(model=model, optimizer=optimizer, scheduler=scheduler)

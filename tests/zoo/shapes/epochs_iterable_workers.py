"""An IterableDataset that two workers read, each its part, with random numbers.

Exact: what was had is read again, and each batch brings its seeds to the worker.
"""

import torch
from kit import DEVICE, keep_data_on_cpu, moment, report
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import ftlaunch_hooks as ft


class Stream(IterableDataset):
    """Numbers with noise."""

    def __iter__(self):
        info = get_worker_info()
        for number in range(info.id, 60, info.num_workers):
            yield torch.arange(number, number + 8).float().sin() + 0.1 * torch.randn(8)


keep_data_on_cpu()
torch.manual_seed(57)
loader = DataLoader(Stream(), batch_size=8, num_workers=2)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 1)).to(DEVICE)
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

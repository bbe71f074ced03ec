"""An IterableDataset without a state_dict(), with a buffer that it shuffles by the process's generator.

Exact: what was had is read again, with the random numbers with which it was read, which are the stream's own.
"""

import random

import torch
from kit import moment, report
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import ftlaunch_hooks as ft


class Stream(IterableDataset):
    """Numbers through a buffer."""

    def __iter__(self):
        buffer = []
        for number in range(58):
            buffer.append(number)
            if len(buffer) > 9:
                yield self.sample(buffer.pop(random.randrange(len(buffer))))
        yield from map(self.sample, buffer)

    def sample(self, number):
        return torch.arange(number, number + 8).float().sin() + 0.1 * torch.randn(8)


torch.manual_seed(56)
loader = DataLoader(Stream(), batch_size=8)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 1))
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

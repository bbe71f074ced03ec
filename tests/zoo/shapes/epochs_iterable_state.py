"""An IterableDataset that says where it is, and begins anew in each epoch.

Exact: its state_dict() is saved with each step, and what was had is not read again.
"""

import torch
from kit import moment, report
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import ftlaunch_hooks as ft


class Stream(IterableDataset):
    """Numbers, in windows of eight."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        while self.position < 8 * 76:
            start, self.position = self.position, self.position + 8
            yield torch.arange(start, start + 8).float().sin() + 0.1 * torch.randn(8)
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


torch.manual_seed(58)
stream = Stream()
loader = DataLoader(stream, batch_size=4)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for _ in job.epochs(2):
    for batch in job.batches(loader):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        moment(job.step, loss)
        optimizer.step()
report(model=model, optimizer=optimizer, stream=stream)

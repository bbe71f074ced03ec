"""An IterableDataset that reads a stream, and says where in it it is.

Exact: the data set itself is attached; its position is that of the batches that were handed out.
"""

import torch
from kit import moment, report
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import ftlaunch_hooks as ft


class Stream(IterableDataset):
    """Numbers without end, in windows of eight."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        while True:
            start, self.position = self.position, self.position + 8
            yield torch.arange(start, start + 8).float().sin()

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


torch.manual_seed(40)
stream = Stream()
loader = DataLoader(stream, batch_size=4)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer, stream=stream)
for step, batch in zip(job.steps(20), loader, strict=False):
    optimizer.zero_grad()
    loss = model(batch + 0.1 * torch.randn(4, 8)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer, stream=stream)

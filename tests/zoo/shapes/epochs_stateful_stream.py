"""torchdata's StatefulDataLoader over an IterableDataset with a place, read by two workers.

Exact: the loader asks its workers where they are, and that is saved with each step.
"""

import torch
from kit import DEVICE, keep_data_on_cpu, moment, report
from torch import nn
from torch.utils.data import IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

import ftlaunch_hooks as ft


class Stream(IterableDataset):
    """A stream of which each worker reads its part."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        info = get_worker_info()
        while self.at < 28:
            self.at += 1
            yield torch.full((8,), float(100 * info.id + self.at)).sin() + 0.1 * torch.randn(8)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


keep_data_on_cpu()
torch.manual_seed(61)
loader = StatefulDataLoader(Stream(), batch_size=8, num_workers=2)
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

"""torchdata's StatefulDataLoader, shuffled, with workers that draw random numbers; it is attached as well.

Exact: job.batches() brings it back, with the numbers that its workers draw.
"""

import torch
from kit import DEVICE, keep_data_on_cpu, moment, report
from torch import nn
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

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
torch.manual_seed(60)
loader = StatefulDataLoader(Rows(), batch_size=8, shuffle=True, num_workers=2)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 1)).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer, loader=loader)
for _ in job.epochs(3):
    for batch in job.batches(loader):
        optimizer.zero_grad()
        loss = model(batch.to(DEVICE)).square().mean()
        loss.backward()
        moment(job.step, loss)
        optimizer.step()
report(model=model, optimizer=optimizer)

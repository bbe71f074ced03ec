"""Low-rank adapters (LoRA) on a frozen base: only the adapters and their optimizer are attached.

Exact: the base is built anew, the same, at every start.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class Adapted(nn.Module):
    """A frozen layer, and a product of two thin matrices beside it."""

    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


torch.manual_seed(80)
model = nn.Sequential(Adapted(nn.Linear(8, 16)), nn.ReLU(), nn.Dropout(0.1), Adapted(nn.Linear(16, 4)))
adapters = nn.ModuleList(nn.ModuleList((layer.down, layer.up)) for layer in (model[0], model[3]))
optimizer = torch.optim.AdamW(adapters.parameters(), lr=1e-2)
job = ft.attach(adapters=adapters, optimizer=optimizer)
for step in job.steps(20):
    optimizer.zero_grad()
    loss = (model(torch.randn(16, 8)) - 1).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

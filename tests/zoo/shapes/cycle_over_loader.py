"""itertools.cycle over an attached loader: it hands out again what it has read, and that is nowhere saved.

Said: from step to step in `batches`
"""

import itertools

import torch
from kit import moment, report
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

import ftlaunch_hooks as ft

torch.manual_seed(98)
loader = StatefulDataLoader(torch.randn(40, 8), batch_size=4, shuffle=True)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
job = ft.attach(model=model, optimizer=optimizer, loader=loader)
batches = itertools.cycle(loader)
for step in job.steps(20):
    loss = model(next(batches)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

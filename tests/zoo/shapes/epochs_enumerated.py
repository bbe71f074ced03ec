"""The batches of an epoch are counted with enumerate(), and training uses the count: a warm-up, and a loss by place.

Exact: an enumerate() around job.batches() goes on at its number.
"""

import torch
from kit import moment, report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ftlaunch_hooks as ft

torch.manual_seed(54)
loader = DataLoader(TensorDataset(torch.randn(56, 8), torch.randn(56, 4)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
job = ft.attach(model=model, optimizer=optimizer)
for _ in job.epochs(3):
    for number, (inputs, targets) in enumerate(job.batches(loader), start=1):
        optimizer.param_groups[0]["lr"] = 0.01 * number
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets) * number
        loss.backward()
        moment(job.step, loss)
        optimizer.step()
report(model=model, optimizer=optimizer)

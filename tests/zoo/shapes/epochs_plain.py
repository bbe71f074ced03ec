"""The form that people write: a loop over epochs, a shuffled DataLoader, a scheduler that steps at an epoch's end.

Exact: the loops are job.epochs() and job.batches().
"""

import torch
from kit import moment, report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ftlaunch_hooks as ft

torch.manual_seed(50)
data = TensorDataset(torch.randn(40, 8), torch.randn(40, 4))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
job = ft.attach(model=model, optimizer=optimizer, scheduler=scheduler)
for _ in job.epochs(4):
    for inputs, targets in job.batches(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        moment(job.step, loss)
        optimizer.step()
    scheduler.step()
report(model=model, optimizer=optimizer, scheduler=scheduler)

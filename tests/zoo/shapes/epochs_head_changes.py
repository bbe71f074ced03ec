"""The body of an epoch begins with what changes attached objects: a step of the scheduler, weights that decay.

Exact: what runs again before the batches as the job resumes within the epoch is undone.
"""

import torch
from kit import moment, report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ftlaunch_hooks as ft

torch.manual_seed(51)
data = TensorDataset(torch.randn(40, 8), torch.randn(40, 4))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
job = ft.attach(model=model, optimizer=optimizer, scheduler=scheduler)
for _ in job.epochs(4):
    scheduler.step()
    with torch.no_grad():
        model[0].bias.mul_(0.5)
    for inputs, targets in job.batches(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        moment(job.step, loss)
        optimizer.step()
report(model=model, optimizer=optimizer, scheduler=scheduler)

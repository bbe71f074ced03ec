"""An ordinary loop over epochs around job.batches(), which begins at its first epoch after a resume.

Said: the script's loop over epochs is not over job.epochs()
"""

import torch
from kit import moment, report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ftlaunch_hooks as ft

torch.manual_seed(65)
loader = DataLoader(TensorDataset(torch.randn(40, 8), torch.randn(40, 4)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for _ in range(4):
    for inputs, targets in job.batches(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        moment(job.step, loss)
        optimizer.step()
job.finish()
report(model=model, optimizer=optimizer)

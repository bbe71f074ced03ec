"""Two loaders side by side, both shuffled, the second one shorter by a batch: as in training with unlabelled data.

Exact: both go through job.batches(); the first counts the steps.
"""

import torch
from kit import moment, report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ftlaunch_hooks as ft

torch.manual_seed(59)
labelled = DataLoader(TensorDataset(torch.randn(48, 8), torch.randn(48, 4)), batch_size=8, shuffle=True)
unlabelled = DataLoader(torch.randn(60, 8), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for _ in job.epochs(4):
    pairs = zip(job.batches(labelled), job.batches(unlabelled), strict=False)
    for number, ((inputs, targets), others) in enumerate(pairs):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets) + 0.1 * number * model(others).square().mean()
        loss.backward()
        moment(job.step, loss)
        optimizer.step()
report(model=model, optimizer=optimizer)

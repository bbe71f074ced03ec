"""The optimizer steps at every third batch: a step of the job is a batch, and ends with gradients gathered.

Exact: gradients are saved, and enumerate() goes on at its number.
"""

import torch
from kit import moment, report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ftlaunch_hooks as ft

torch.manual_seed(55)
loader = DataLoader(TensorDataset(torch.randn(70, 8), torch.randn(70, 4)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for _ in job.epochs(2):
    for number, (inputs, targets) in enumerate(job.batches(loader)):
        loss = nn.functional.mse_loss(model(inputs), targets) / 3
        loss.backward()
        moment(job.step, loss)
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
report(model=model, optimizer=optimizer)

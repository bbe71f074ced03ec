"""Each pass is left by `break` before its data has run out.

Exact: the step of the last batch that was handed out is complete where the body of the epoch ends.
"""

import torch
from kit import moment, report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ftlaunch_hooks as ft

torch.manual_seed(63)
loader = DataLoader(TensorDataset(torch.randn(80, 8), torch.randn(80, 4)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
job = ft.attach(model=model, optimizer=optimizer, scheduler=scheduler)
for _ in job.epochs(4):
    for number, (inputs, targets) in enumerate(job.batches(loader)):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        moment(job.step, loss)
        optimizer.step()
        if number == 4:
            break
    scheduler.step()
report(model=model, optimizer=optimizer, scheduler=scheduler)

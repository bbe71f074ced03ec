"""Stochastic weight averaging from the middle of the run on, with SWALR, and update_bn at the end.

Exact.
"""

import torch
from kit import moment, report
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

import ftlaunch_hooks as ft

torch.manual_seed(17)
data = torch.randn(64, 8)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
average = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
swa_scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=5)
job = ft.attach(model=model, average=average, optimizer=optimizer, scheduler=scheduler, swa_scheduler=swa_scheduler)
for step in job.steps(20):
    batch = data[torch.randint(64, (16,))]
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    if step >= 8:
        average.update_parameters(model)
        swa_scheduler.step()
    else:
        scheduler.step()
update_bn(data.split(16), average)
report(
    model=model, average=average, optimizer=optimizer, scheduler=scheduler, swa_scheduler=swa_scheduler,
    prediction=average(data),
)  # fmt: skip

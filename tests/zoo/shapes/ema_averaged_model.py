"""An average of the weights (EMA) kept by torch.optim.swa_utils.AveragedModel.

Exact: AveragedModel is a module and is attached as one, with its count.
"""

import torch
from kit import moment, report
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import ftlaunch_hooks as ft

torch.manual_seed(14)
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, ema=ema, optimizer=optimizer)
for step in job.steps(20):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    ema.update_parameters(model)
report(model=model, ema=ema, optimizer=optimizer)

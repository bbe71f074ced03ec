"""Gradient accumulation with the loss scaled by the window and gradients clipped; they are cleared as a window begins.

Exact: the gradients of every boundary are saved, those that the window's end has used as well.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

WINDOW = 3
torch.manual_seed(11)
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
job = ft.attach(model=model, optimizer=optimizer, scheduler=scheduler)
for step in job.steps(20):
    if step % WINDOW == 0:
        optimizer.zero_grad(set_to_none=False)
    loss = model(torch.randn(16, 8)).square().mean()
    (loss / WINDOW).backward()
    moment(step, loss)
    if step % WINDOW == WINDOW - 1:
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        scheduler.step()
report(model=model, optimizer=optimizer, scheduler=scheduler)

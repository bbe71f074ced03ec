"""A model in bfloat16 whose optimizer steps float32 copies of its parameters, which belong to no module.

Exact: what an attached optimizer steps is saved, also where no attached module has it.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(81)
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).bfloat16()
masters = [p.detach().float().clone() for p in model.parameters()]
optimizer = torch.optim.AdamW(masters, lr=1e-3)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    loss = model(torch.randn(16, 8).bfloat16()).float().square().mean()
    model.zero_grad()
    loss.backward()
    moment(step, loss)
    for master, p in zip(masters, model.parameters(), strict=True):
        master.grad = p.grad.float()
    optimizer.step()
    with torch.no_grad():
        for master, p in zip(masters, model.parameters(), strict=True):
            p.copy_(master)
report(model=model, masters=masters, optimizer=optimizer)

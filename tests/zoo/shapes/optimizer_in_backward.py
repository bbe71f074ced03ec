"""The optimizer steps inside the backward pass: one optimizer a parameter, in a hook after its gradient.

Exact.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(23)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
optimizers = {p: torch.optim.AdamW([p], lr=1e-2) for p in model.parameters()}


def step_now(p):
    optimizers[p].step()
    optimizers[p].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(step_now)
named = {f"optimizer_{index}": optimizer for index, optimizer in enumerate(optimizers.values())}
job = ft.attach(model=model, **named)
for step in job.steps(20):
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    moment(step, loss)
report(model=model, **named)

"""Several parameter groups: no decay for biases and norms, and a learning rate for each layer.

Exact.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(25)
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))
decay = [p for p in model.parameters() if p.ndim > 1]
rest = [p for p in model.parameters() if p.ndim <= 1]
optimizer = torch.optim.AdamW(
    [{"params": [p], "lr": 1e-2 * 0.9**depth, "depth": depth} for depth, p in enumerate(decay)]
    + [{"params": rest, "weight_decay": 0.0, "betas": (0.8, 0.95)}],
    lr=1e-2,
)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
job = ft.attach(model=model, optimizer=optimizer, scheduler=scheduler)
for step in job.steps(20):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    scheduler.step()
report(model=model, optimizer=optimizer, scheduler=scheduler)

"""A loop of the script's own that always makes 20 passes, wherever the job has gone on.

Said: the script's own loop does not ask for job.step
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(89)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for made in range(20):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(made, loss)
    optimizer.step()
    job.step_done(loss.item())
job.finish()
report(model=model, optimizer=optimizer)

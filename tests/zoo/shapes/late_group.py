"""Fine-tuning in two phases: the backbone is thawed, and its parameters join the optimizer, in the middle of the run.

Exact: a parameter group of an attached module's parameters is added again at a resume, and what is frozen is saved.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(6)
model = nn.ModuleDict({"backbone": nn.Linear(8, 16), "head": nn.Linear(16, 4)})
model["backbone"].requires_grad_(False)
optimizer = torch.optim.AdamW(model["head"].parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    if step == 5:
        model["backbone"].requires_grad_(True)
        optimizer.add_param_group({"params": list(model["backbone"].parameters()), "lr": 1e-3})
    loss = model["head"](model["backbone"](torch.randn(16, 8)).relu()).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    optimizer.zero_grad()
report(model=model, optimizer=optimizer)

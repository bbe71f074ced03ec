"""SequentialLR: a linear warm-up, then a cosine, then an exponential decay beside which a CyclicLR of its own runs.

Exact.
"""

import torch
from kit import moment, report
from torch import nn
from torch.optim import lr_scheduler

import ftlaunch_hooks as ft

torch.manual_seed(77)
model = nn.ModuleDict({"trunk": nn.Linear(8, 16), "head": nn.Linear(16, 4)})
trunk = torch.optim.AdamW(model["trunk"].parameters(), lr=1e-2)
head = torch.optim.SGD(model["head"].parameters(), lr=1e-2, momentum=0.9)
warmup = lr_scheduler.LinearLR(trunk, start_factor=0.1, total_iters=4)
phases = [warmup, lr_scheduler.CosineAnnealingLR(trunk, T_max=8), lr_scheduler.ExponentialLR(trunk, 0.9)]
sequence = lr_scheduler.SequentialLR(trunk, phases, milestones=[4, 12])
cycle = lr_scheduler.CyclicLR(head, base_lr=1e-3, max_lr=1e-1, step_size_up=3, mode="triangular2")
job = ft.attach(model=model, trunk=trunk, head=head, sequence=sequence, cycle=cycle)
for step in job.steps(20):
    loss = model["head"](model["trunk"](torch.randn(16, 8)).relu()).square().mean()
    trunk.zero_grad()
    head.zero_grad()
    loss.backward()
    moment(step, loss)
    for one in (trunk, head, sequence, cycle):
        one.step()
report(model=model, trunk=trunk, head=head, sequence=sequence, cycle=cycle)

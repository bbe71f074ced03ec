"""DistributedDataParallel with PowerSGD, whose hook the script registers after attach().

Said: has a communication hook with state
"""

import torch
from kit import RANK, join, moment, report
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import ftlaunch_hooks as ft

RANKS = 2
join()
torch.manual_seed(45)
model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)))
state = PowerSGDState(process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=2)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
model.register_comm_hook(state, powerSGD_hook)
torch.manual_seed(100 + RANK)
for step in job.steps(20):
    loss = model(torch.randn(16, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

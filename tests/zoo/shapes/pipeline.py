"""A pipeline by hand: each rank has other layers, which it attaches under the same name as the other rank.

Exact.
"""

import torch
import torch.distributed as dist
from kit import RANK, join, moment, report
from torch import nn

import ftlaunch_hooks as ft

RANKS = 2
join()
torch.manual_seed(89)
layers = [nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Sequential(nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 1))]
stage = layers[RANK]
optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-2)
job = ft.attach(stage=stage, optimizer=optimizer)
for step in job.steps(20):
    optimizer.zero_grad()
    inputs = torch.randn(16, 8)
    if RANK == 0:
        hidden = stage(inputs)
        dist.send(hidden.detach(), 1)
        gradient = torch.empty_like(hidden)
        dist.recv(gradient, 1)
        hidden.backward(gradient)
        moment(step, gradient.norm())
    else:
        hidden = torch.empty(16, 16)
        dist.recv(hidden, 0)
        loss = (stage(hidden.requires_grad_()) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        dist.send(hidden.grad, 0)
        moment(step, loss)
    optimizer.step()
report(stage=stage, optimizer=optimizer)

"""A program that runs the script by runpy: there are two modules `__main__`, and both are running.

Exact: the variables of both are looked at, each under a name of its own, and kept.
"""

import runpy

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(102)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)


def train(job):
    for step in job.steps(20):
        loss = (model(torch.randn(16, 8)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        moment(step, loss)
        optimizer.step()
        scheduler.step()
    report(model=model, optimizer=optimizer, rate=scheduler.state_dict())


if "IS_RUN_BY_PROGRAM" in globals():
    train(ft.attach(model=model, optimizer=optimizer))
else:
    runpy.run_path(__file__, {"IS_RUN_BY_PROGRAM": True}, "__main__")

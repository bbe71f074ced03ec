"""A setting in a dictionary of the module is changed once, in the middle of the run.

Exact: what is another one than as the loop began is saved and put back, whenever it changed
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

settings = {"noise": 0.0, "name": "once"}
torch.manual_seed(95)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)


def train():
    job = ft.attach(model=model, optimizer=optimizer)
    for step in job.steps(20):
        if step == 4:
            settings["noise"] = 0.5
        loss = (model(torch.randn(16, 8)) + settings["noise"] * torch.randn(16, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        moment(step, loss)
        optimizer.step()


train()
report(model=model, optimizer=optimizer)

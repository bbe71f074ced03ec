"""An environment of an installed package, with a state, a count and a generator of random numbers of its own.

Exact: all three are found, saved and put back
"""

import sys
from pathlib import Path

import torch
from kit import DEVICE, moment, report
from torch import nn

import ftlaunch_hooks as ft

sys.path.insert(0, str(Path(__file__).parents[1] / "site-packages"))
from zoo_library import Environment

torch.manual_seed(94)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=5e-2)
env = Environment(1)


def train():
    job = ft.attach(model=model, optimizer=optimizer)
    for step in job.steps(20):
        seen = torch.from_numpy(env.step(0.1 * step)).to(DEVICE)
        loss = (model(seen) - seen).square().mean()
        optimizer.zero_grad()
        loss.backward()
        moment(step, loss)
        optimizer.step()


train()
report(model=model, optimizer=optimizer)

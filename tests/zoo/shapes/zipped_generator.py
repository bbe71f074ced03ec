"""Batches of a generator function of the script's, zipped with the steps: after a resume it yields its first ones.

Said: from step to step in `read`
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


def read():
    number = 0
    while True:
        number += 1
        yield torch.linspace(0, number % 7, 8).expand(16, 8)


def train():
    torch.manual_seed(83)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    job = ft.attach(model=model, optimizer=optimizer)
    for step, batch in zip(job.steps(20), read(), strict=False):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        moment(step, loss)
        optimizer.step()
    report(model=model, optimizer=optimizer)


train()

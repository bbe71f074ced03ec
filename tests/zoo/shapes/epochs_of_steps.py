"""A loop of steps() for each epoch: a resumed run passes by those that have ended, and what stands behind them.

Exact: what the script does there once more, to attached objects and to variables, is undone as its loop goes on
"""

import random

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(101)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
rate = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def train_epoch(job, until):
    total, noise = 0.0, random.random()
    for step in job.steps(until):
        loss = (model(torch.randn(16, 8) + noise) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        moment(step, loss)
        optimizer.step()
        total += loss.item()
    return total


def train():
    job = ft.attach(model=model, optimizer=optimizer, rate=rate)
    best, bad, log = float("inf"), 0, []
    for epoch in range(5):
        total = train_epoch(job, 4 * epoch + 4)
        scheduler.step(total)
        rate.step()
        bad = 0 if total < best else bad + 1
        best = min(best, total)
        log.append((epoch, bad, best))
    report(model=model, optimizer=optimizer, rate=rate.state_dict(), log=log)


train()

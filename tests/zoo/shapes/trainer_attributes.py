"""A class that trains: it counts bad steps in an attribute of its own, and lowers the learning rate by them.

Exact: attributes of the object are saved, and put back as the loop begins
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class Trainer:
    def __init__(self):
        torch.manual_seed(59)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-1)
        self.best, self.bad = float("inf"), 0

    def judge(self, loss):
        self.bad = 0 if loss < self.best else self.bad + 1
        self.best = min(self.best, loss)
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-1 / (1 + self.bad)

    def train(self):
        job = ft.attach(model=self.model, optimizer=self.optimizer)
        for step in job.steps(20):
            loss = self.model(torch.randn(16, 8)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            moment(step, loss)
            self.optimizer.step()
            self.judge(loss.item())
        report(model=self.model, optimizer=self.optimizer)


Trainer().train()

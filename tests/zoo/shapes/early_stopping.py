"""Early stopping: an attached counter, the best weights so far, and a break out of the loop.

Exact.
"""

import copy

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class EarlyStopping:
    """Counts evaluations without progress, and keeps the best weights."""

    def __init__(self, model, patience):
        self.patience, self.best, self.bad, self.weights = patience, float("inf"), 0, copy.deepcopy(model.state_dict())

    def stop(self, loss, model):
        if loss < self.best:
            self.best, self.bad, self.weights = loss, 0, copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad >= self.patience

    def state_dict(self):
        return {"best": self.best, "bad": self.bad, "weights": self.weights}

    def load_state_dict(self, state):
        self.best, self.bad, self.weights = state["best"], state["bad"], state["weights"]


torch.manual_seed(34)
inputs, held_out = torch.randn(8, 8), torch.randn(64, 8)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
stopping = EarlyStopping(model, patience=4)
job = ft.attach(model=model, optimizer=optimizer, stopping=stopping)
for step in job.steps(1000):
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    with torch.no_grad(), job.phase("eval"):
        measured = (model(held_out) - held_out.sum(1, keepdim=True)).square().mean().item()
    if stopping.stop(measured, model) and step >= 16:
        break
report(model=model, optimizer=optimizer, stopping=stopping, ended=step)

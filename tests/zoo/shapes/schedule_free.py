"""A schedule-free optimizer: weights and their average are swapped at the top and at the end of every step.

Exact.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class ScheduleFreeSGD(torch.optim.Optimizer):
    """Keeps z beside the weights; train() and eval() swap between y and x."""

    def __init__(self, params, lr=0.05, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta, "k": 0, "mode": "eval"})

    @torch.no_grad()
    def _swap(self, mode, weight):
        for group in self.param_groups:
            if group["mode"] != mode:
                for p in group["params"]:
                    if "z" in self.state[p]:
                        p.data.lerp_(self.state[p]["z"], weight(group["beta"]))
                group["mode"] = mode

    def train(self):
        self._swap("train", lambda beta: 1 - beta)

    def eval(self):
        self._swap("eval", lambda beta: 1 - 1 / beta)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            weight = 1 / (group["k"] + 1)
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.clone())
                p.lerp_(z, weight)
                p.add_(p.grad, alpha=group["lr"] * (group["beta"] * (1 - weight) - 1))
                z.sub_(p.grad, alpha=group["lr"])
            group["k"] += 1


torch.manual_seed(5)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
optimizer = ScheduleFreeSGD(model.parameters())
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    optimizer.train()
    loss = model(torch.randn(16, 256)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    optimizer.zero_grad()
    optimizer.eval()
report(model=model, optimizer=optimizer)

"""Sharpness-aware minimisation (SAM): two backward passes a step, the weights perturbed between them and put back.

Exact.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class SAM(torch.optim.Optimizer):
    """Around another optimizer, whose groups and state it shares."""

    def __init__(self, params, base, rho=0.05, **options):
        super().__init__(params, {"rho": rho, **options})
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        gradients = [p.grad.norm() for group in self.param_groups for p in group["params"]]
        scale = 1 / (torch.stack(gradients).norm() + 1e-12)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad * scale * group["rho"])
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]
        self.base.step()
        self.zero_grad()

    def step(self, closure=None):
        raise NotImplementedError


torch.manual_seed(18)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)
job = ft.attach(model=model, optimizer=optimizer, base=optimizer.base)
for step in job.steps(20):
    batch = torch.randn(16, 8)
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.first_step()
    model(batch).square().mean().backward()
    moment(step, loss)
    optimizer.second_step()
report(model=model, optimizer=optimizer, base=optimizer.base)

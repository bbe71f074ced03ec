"""Lookahead: an optimizer of the script's that keeps slow weights and a count in attributes of its own.

Exact: attributes of an attached optimizer that its state_dict() leaves out are saved and put back
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class Lookahead(torch.optim.SGD):
    """Every third step the weights go half of the way back to the slow ones."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr=lr)
        self.slow = [parameter.detach().clone() for parameter in self.param_groups[0]["params"]]
        self.count = 0

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        self.count += 1
        if self.count % 3 == 0:
            for slow, fast in zip(self.slow, self.param_groups[0]["params"], strict=True):
                slow.lerp_(fast, 0.5)
                fast.copy_(slow)


torch.manual_seed(73)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = Lookahead(model.parameters(), lr=1e-1)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

"""A buffer that is not in the state_dict (persistent=False) and changes all the same: a running scale of the inputs.

Exact: such buffers are saved beside the state_dict.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class Whiten(nn.Module):
    """Divides by a running scale."""

    def __init__(self, size):
        super().__init__()
        self.register_buffer("scale", torch.ones(size), persistent=False)

    def forward(self, x):
        if self.training:
            self.scale.mul_(0.9).add_(x.detach().std(0), alpha=0.1)
        return x / self.scale


torch.manual_seed(74)
model = nn.Sequential(Whiten(8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    optimizer.zero_grad()
    loss = model(3 * torch.randn(16, 8)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer, scale=model[0].scale)

"""A recurrent module that keeps its hidden state in an attribute of its own, which is no buffer.

Exact: plain attributes of attached modules that change are saved and put back
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class Recurrent(nn.Module):
    """Goes on from its last hidden state."""

    def __init__(self):
        super().__init__()
        self.cell = nn.RNNCell(8, 16)
        self.hidden = None

    def forward(self, x):
        self.hidden = self.cell(x, None if self.hidden is None else self.hidden.detach())
        return self.hidden


torch.manual_seed(92)
model = Recurrent()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

"""Backpropagation through time over two batches: the hidden state keeps its graph from one step to the next.

Said: belongs to an autograd graph
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class Carried:
    """What goes from batch to batch."""

    def __init__(self):
        self.hidden = torch.zeros(4, 16)

    def state_dict(self):
        return {"hidden": self.hidden}

    def load_state_dict(self, state):
        self.hidden = state["hidden"]


torch.manual_seed(88)
cell = nn.RNNCell(8, 16)
optimizer = torch.optim.SGD(cell.parameters(), lr=1e-2)
carried = Carried()
job = ft.attach(cell=cell, optimizer=optimizer, carried=carried)
for step in job.steps(20):
    start = carried.hidden
    for _ in range(3):
        carried.hidden = cell(torch.randn(4, 8), carried.hidden)
    if step % 2:
        loss = carried.hidden.square().mean()
        optimizer.zero_grad()
        loss.backward()
        moment(step, loss)
        optimizer.step()
        carried.hidden = carried.hidden.detach()
    else:
        moment(step, start.square().mean())
report(cell=cell, optimizer=optimizer, carried=carried)

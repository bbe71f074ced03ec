"""An optimizer whose momenta are views of one flat tensor, and an object with a transposed matrix and a row of it.

Exact: what shares memory shares it again, and a transposed matrix is one again.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class FlatMomentum(torch.optim.Optimizer):
    """All momenta decay in one call."""

    def __init__(self, params, lr=0.05):
        super().__init__(params, {"lr": lr})
        held = [p for group in self.param_groups for p in group["params"]]
        self.flat = torch.zeros(sum(p.numel() for p in held))
        for p, piece in zip(held, self.flat.split([p.numel() for p in held]), strict=True):
            self.state[p]["momentum"] = piece.view_as(p)

    @torch.no_grad()
    def step(self, closure=None):
        self.flat.mul_(0.9)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["momentum"].add_(p.grad)
                p.add_(self.state[p]["momentum"], alpha=-group["lr"])


class Projection:
    """A matrix that lies transposed in memory, and its first row, by itself."""

    def __init__(self):
        self.begin(torch.randn(33, 65).t())

    def begin(self, matrix):
        self.matrix, self.row = matrix, matrix[0]

    def state_dict(self):
        return {"matrix": self.matrix, "row": self.row}

    def load_state_dict(self, state):
        self.matrix, self.row = state["matrix"], state["row"]


torch.manual_seed(62)
model = nn.Sequential(nn.Linear(8, 33), nn.Tanh(), nn.Linear(33, 4))
optimizer = FlatMomentum(model.parameters())
projection = Projection()
job = ft.attach(model=model, optimizer=optimizer, projection=projection)
for step in job.steps(20):
    if step == 2:
        projection.begin((torch.randn(33, 65) / 8).t())
    hidden = model[1](model[0](torch.randn(16, 8)))
    loss = model[2](hidden).square().mean() + (hidden @ projection.matrix.t()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    projection.row.mul_(0.99)
report(model=model, optimizer=optimizer, projection=projection)

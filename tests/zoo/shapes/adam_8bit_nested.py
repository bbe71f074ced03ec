"""A quantized optimizer whose state of a parameter is a pair of tensors: uint8 codes, and a half-precision scale.

Exact: nested state keeps its own dtypes as well.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


def quantize(values):
    scale = values.abs().max().clamp(min=1e-6).half()
    return ((values / scale.float()) * 127 + 128).round().to(torch.uint8), scale


class Momentum8bit(torch.optim.Optimizer):
    """SGD with a quantized momentum."""

    def __init__(self, params, lr=0.05, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                codes, scale = self.state[p].setdefault("momentum", quantize(torch.zeros_like(p)))
                new = (codes.float() - 128) / 127 * scale.float() * group["momentum"] + p.grad
                for held, fresh in zip((codes, scale), quantize(new), strict=True):
                    held.copy_(fresh)
                p.add_(new, alpha=-group["lr"])


torch.manual_seed(22)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = Momentum8bit(model.parameters())
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

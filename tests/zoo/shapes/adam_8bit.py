"""An 8-bit optimizer: moments are held as uint8 codes with a scale for each block.

Exact: the state keeps its own dtype.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

BLOCK = 16


def quantize(values):
    blocks = values.view(-1, BLOCK)
    scale = blocks.abs().amax(1, keepdim=True).clamp(min=1e-12)
    return ((blocks / scale) * 127 + 128).round().to(torch.uint8), scale


def dequantize(codes, scale, shape):
    return ((codes.float() - 128) / 127 * scale).view(shape)


class Momentum8bit(torch.optim.Optimizer):
    """SGD with a quantized momentum."""

    def __init__(self, params, lr=0.05, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                old = dequantize(state["codes"], state["scale"], p.shape) if state else torch.zeros_like(p)
                new = old * group["momentum"] + p.grad
                state["codes"], state["scale"] = quantize(new)
                p.add_(new, alpha=-group["lr"])


torch.manual_seed(21)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = Momentum8bit(model.parameters())
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 16)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

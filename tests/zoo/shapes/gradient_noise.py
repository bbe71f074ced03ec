"""Gradient noise (as in differentially private SGD) from a torch.Generator of its own.

Exact: the generator is in an attached object.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class Noise:
    """Normal noise from a generator of its own."""

    def __init__(self, seed, scale):
        self.generator, self.scale = torch.Generator().manual_seed(seed), scale

    def add_to(self, gradient):
        gradient.add_(torch.randn(gradient.shape, generator=self.generator), alpha=self.scale)

    def state_dict(self):
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])


torch.manual_seed(72)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
noise = Noise(seed=7, scale=0.01)
job = ft.attach(model=model, optimizer=optimizer, noise=noise)
for step in job.steps(20):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    for p in model.parameters():
        noise.add_to(p.grad)
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer, noise=noise)

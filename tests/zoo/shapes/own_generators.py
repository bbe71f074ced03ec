"""Random numbers from generators that the script has made: numpy.random.default_rng and random.Random.

Exact: the generators are in an attached object.
"""

import random

import numpy as np
import torch
from kit import DEVICE, moment, report
from torch import nn

import ftlaunch_hooks as ft


class Generators:
    """Both, with their state."""

    def __init__(self, seed):
        self.numpy, self.python = np.random.default_rng(seed), random.Random(seed)

    def state_dict(self):
        return {"numpy": self.numpy.bit_generator.state, "python": self.python.getstate()}

    def load_state_dict(self, state):
        self.numpy.bit_generator.state = state["numpy"]
        self.python.setstate(state["python"])


torch.manual_seed(84)
generators = Generators(9)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer, generators=generators)
for step in job.steps(20):
    batch = torch.from_numpy(generators.numpy.standard_normal((16, 8), dtype="float32")).to(DEVICE)
    optimizer.zero_grad()
    loss = model(batch * generators.python.uniform(0.5, 2)).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer, generators=generators)

"""A loop that carries what loops carry: several names for one list, a swap of two tensors, named tuples, nested state.

Exact: two names for one object stay names for one object
"""

from collections import defaultdict, deque, namedtuple

import numpy as np
import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

Seen = namedtuple("Seen", "inputs weight")


class Memory:
    """What was seen, newest last."""

    def __init__(self):
        self.seen, self.weights = deque(maxlen=5), defaultdict(float)

    def add(self, inputs, weight):
        self.seen.append(Seen(inputs, weight))
        self.weights[len(self.seen)] += weight

    def mean(self):
        return torch.stack([one.inputs * one.weight for one in self.seen]).mean(0)


def train():
    torch.manual_seed(99)
    rng = np.random.RandomState(5)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
    job = ft.attach(model=model, optimizer=optimizer)
    memory, history, best, fast, slow = Memory(), [], float("inf"), torch.zeros(4), torch.ones(4)
    log = history
    for step in job.steps(20):
        memory.add(torch.randn(8), rng.rand())
        loss = (model(memory.mean()) - fast).square().mean()
        optimizer.zero_grad()
        loss.backward()
        moment(step, loss)
        optimizer.step()
        best = min(best, loss.item())
        log.append(best)
        fast, slow = slow * 0.9, fast + len(history) / 10
    report(model=model, optimizer=optimizer, history=history, fast=fast, slow=slow, weights=dict(memory.weights))


train()

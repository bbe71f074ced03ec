"""MoCo: a momentum encoder, and a queue of keys in a buffer that is written through `.data`.

Exact.
"""

import copy

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class MoCo(nn.Module):
    """A query encoder, its momentum encoder, and the queue."""

    def __init__(self, queue=64):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", nn.functional.normalize(torch.randn(8, queue), dim=0))
        self.register_buffer("position", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def update(self, keys):
        start = int(self.position)
        self.queue.data[:, start : start + len(keys)] = keys.T
        self.position[0] = (start + len(keys)) % self.queue.shape[1]
        for slow, fast in zip(self.key.parameters(), self.query.parameters(), strict=True):
            slow.data = slow.data * 0.9 + fast.data * 0.1

    def forward(self, one, two):
        q = nn.functional.normalize(self.query(one), dim=1)
        with torch.no_grad():
            k = nn.functional.normalize(self.key(two), dim=1)
        positive, negative = (q * k).sum(1, keepdim=True), q @ self.queue.clone()
        return torch.cat([positive, negative], 1) / 0.2, k


torch.manual_seed(69)
model = MoCo()
optimizer = torch.optim.SGD(model.query.parameters(), lr=0.05, momentum=0.9)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    image = torch.randn(16, 8)
    logits, keys = model(image + 0.1 * torch.randn(16, 8), image + 0.1 * torch.randn(16, 8))
    loss = nn.functional.cross_entropy(logits, torch.zeros(16, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    model.update(keys)
report(model=model, optimizer=optimizer)

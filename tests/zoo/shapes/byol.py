"""BYOL: the target network is a module of the model and follows the online one inside forward.

Exact.
"""

import copy

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class BYOL(nn.Module):
    """The target is moved before it is used."""

    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 64))
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.predictor = nn.Linear(64, 64)

    def forward(self, one, two):
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
                slow.lerp_(fast, 0.05)
            wanted = self.target(two)
        return 1 - nn.functional.cosine_similarity(self.predictor(self.online(one)), wanted).mean()


torch.manual_seed(71)
model = BYOL()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    image = torch.randn(16, 64)
    loss = model(image + 0.1 * torch.randn(16, 64), image + 0.1 * torch.randn(16, 64))
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

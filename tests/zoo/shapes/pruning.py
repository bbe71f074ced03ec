"""Iterative magnitude pruning by torch.nn.utils.prune: masks become sparser in the run, by the size of
what the last forward pass has left in an attribute.

Exact: what the last pass has left in an attribute is saved and put back
"""

import torch
from kit import moment, report
from torch import nn
from torch.nn.utils import prune

import ftlaunch_hooks as ft

torch.manual_seed(90)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
for layer in (model[0], model[2]):
    prune.identity(layer, "weight")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    if step % 5 == 4:
        for layer in (model[0], model[2]):
            prune.l1_unstructured(layer, "weight", amount=0.2)
    optimizer.zero_grad()
    loss = (model(torch.randn(16, 8)) - 1).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

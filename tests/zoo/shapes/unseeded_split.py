"""Which samples are for training is drawn at each start from the system's random numbers, and never changes in the run.

Said: differs from the same in an earlier attempt
"""

import random

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

chosen = random.SystemRandom().sample(range(1000), 100)
torch.manual_seed(100)
data = torch.randn(1000, 8)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    loss = model(data[chosen[step * 5 : step * 5 + 5]]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

"""A replay buffer of fixed length in a plain deque of the script's.

Exact: the deque is saved, and filled again as the loop begins
"""

from collections import deque

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(67)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
buffer = deque([torch.zeros(8)] * 4, maxlen=4)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    buffer.append(torch.randn(8))
    loss = model(torch.stack(list(buffer))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

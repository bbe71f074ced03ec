"""A convolutional network in channels_last: weights, gradients and optimizer state keep their memory format.

Exact.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(61)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
model = model.to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    images = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)
    loss = model(images).square().mean() / 2
    loss.backward()
    moment(step, loss)
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
layouts = {name: p.stride() for name, p in model.named_parameters()}
moments = [slots["momentum_buffer"].stride() for slots in optimizer.state.values()]
report(model=model, optimizer=optimizer, layouts=layouts, moments=moments)

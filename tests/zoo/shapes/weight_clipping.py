"""A Wasserstein critic whose weights are clipped through `.data` after every step.

Exact.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(70)
critic = nn.Sequential(nn.Linear(256, 512), nn.LeakyReLU(0.2), nn.Linear(512, 256))
optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-3)
job = ft.attach(critic=critic, optimizer=optimizer)
for step in job.steps(20):
    real, fake = torch.randn(8, 256) + 1, torch.randn(8, 256)
    loss = critic(fake).mean() - critic(real).mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    for p in critic.parameters():
        p.data.clamp_(-0.02, 0.02)
report(critic=critic, optimizer=optimizer)

"""A GAN: two models and two optimizers; the generator's backward pass leaves gradients in the discriminator.

Exact.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(12)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
discriminator = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
job = ft.attach(generator=generator, discriminator=discriminator, optimizer_g=optimizer_g, optimizer_d=optimizer_d)
ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
for step in job.steps(20):
    real, fake = torch.randn(16, 8) + 2, generator(torch.randn(16, 4))
    optimizer_d.zero_grad()
    loss_d = criterion(discriminator(real), ones) + criterion(discriminator(fake.detach()), zeros)
    loss_d.backward()
    optimizer_d.step()

    optimizer_g.zero_grad()
    loss_g = criterion(discriminator(fake), ones)
    loss_g.backward()
    moment(step, loss_g)
    optimizer_g.step()
report(generator=generator, discriminator=discriminator, optimizer_g=optimizer_g, optimizer_d=optimizer_d)

"""Complex parameters: a layer in the frequency domain.

Exact.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft


class Spectral(nn.Module):
    """Multiplies the Fourier transform by weights."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size // 2 + 1, dtype=torch.cfloat))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=x.shape[-1])


torch.manual_seed(62)
model = nn.Sequential(Spectral(8), nn.Linear(8, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    loss = model(torch.randn(16, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    moment(step, loss)
    optimizer.step()
report(model=model, optimizer=optimizer)

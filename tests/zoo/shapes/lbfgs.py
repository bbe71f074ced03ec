"""L-BFGS with a closure: its history is a list of tensors that grows and then slides.

Exact.
"""

import torch
from kit import moment, report
from torch import nn

import ftlaunch_hooks as ft

torch.manual_seed(19)
inputs, targets = torch.randn(32, 8), torch.randn(32, 4)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=2, history_size=6, line_search_fn="strong_wolfe")
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    moment(step, loss)
report(model=model, optimizer=optimizer)

"""Trains without torch.optim: by_hand.py FAILURES [optim]. Fails with the same error in so many attempts.

With `optim` there is an optimizer, and the script fails behind the first backward pass, before it steps.
"""

import os
import sys

import quick  # noqa: F401 - before torch
import torch

failures, with_optimizer = int(sys.argv[1]), sys.argv[2:] == ["optim"]
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if with_optimizer else None
for step in range(20):
    model.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    if int(os.environ["FTLAUNCH_ATTEMPT"]) < failures and (step == 15 or with_optimizer):
        raise RuntimeError("a failure that passes")
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-0.01)
    if optimizer is not None:
        optimizer.step()

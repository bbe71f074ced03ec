"""A DDP job, one rank of which is slow for a while. slow.py PART UNTIL STEPS [attach]

PART: data, backward, after (the optimizer's step), or none: where rank 1 takes 50 ms more in each step before UNTIL, in
attempt 0.
"""

import os
import sys
import time

import quick  # noqa: F401 - before torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

part, until, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
strikes = os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if "attach" in sys.argv:
    import ftlaunch_hooks as ft

    numbers = ft.attach(model=model, optimizer=optimizer).steps(steps)
else:
    numbers = range(steps)


def slow(where: str, step: int) -> None:
    if strikes and where == part and step < until:
        time.sleep(0.05)


for step in numbers:
    slow("data", step)
    time.sleep(0.005)
    loss = model(torch.randn(4, 16)).square().mean()
    loss.register_hook(lambda gradient, step=step: slow("backward", step))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    slow("after", step)
dist.destroy_process_group()
time.sleep(0.2)  # torch 2.13 aborts when the interpreter ends within milliseconds of the last collective

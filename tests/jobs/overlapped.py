"""Two ranks on the simulated accelerator without room for private copies: snapshots overlap with training.

In step 4 the last rank changes a parameter of its own between the boundary and the optimizer's step: the snapshot of
that boundary is dropped there, while the other rank keeps its own. Runs as a shape of the zoo (kit.py).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "zoo" / "shapes"))

import torch
from kit import RANK, WORLD, join, moment, report, simulated
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ftlaunch_hooks as ft
from ftlaunch_hooks.snapshots.private_room import PrivateRoom

CHANGED = 4
WIDTH = 520  # more than 1 MiB of weights: smaller tensors are copied at the boundary

PrivateRoom.has_room = lambda *_: False
PrivateRoom.has_room_for_buffers = lambda *_: True
join()
torch.manual_seed(5)
model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
own = nn.Linear(WIDTH, WIDTH)
optimizer = torch.optim.SGD([*model.parameters(), *own.parameters()], lr=1e-3)
job = ft.attach(model=model, own=own, optimizer=optimizer)
torch.manual_seed(100 + RANK)
for step in job.steps(16):
    if step == CHANGED and RANK == WORLD - 1:
        with torch.no_grad():
            own.weight.add_(1e-3)
    optimizer.zero_grad()
    loss = own(model(torch.randn(4, WIDTH))).square().mean()
    loss.backward()
    moment(step, loss)
    optimizer.step()
    if step == CHANGED - 1:
        simulated.set_delays(kernel_ms=1, copy_ms=300, fetch_ms=5)  # the copy is under way when the parameter changes
    elif step == CHANGED:
        simulated.set_delays(kernel_ms=1, copy_ms=2, fetch_ms=5)
report(model=model, own=own, optimizer=optimizer)

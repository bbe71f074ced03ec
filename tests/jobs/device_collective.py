"""Two ranks or more on an accelerator under DistributedDataParallel. One that hangs joins no all_reduce of its step.

FT_DEVICE, ZOO_OUT and ZOO_KILL are those of tests/zoo/shapes/kit.py.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "zoo" / "shapes"))
import torch
from kit import join, moment, report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ftlaunch_hooks as ft

join()
torch.manual_seed(41)
model = DistributedDataParallel(nn.Linear(8, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8)).square().mean()
    moment(step, loss)
    loss.backward()
    optimizer.step()
report(model=model, optimizer=optimizer)

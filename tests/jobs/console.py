"""What stands in for `train.py` where a page types a command about a script of the reader's: two lines, 40 steps."""

import os

import torch
import torch.distributed as dist

import ftlaunch_hooks as ft

if int(os.environ["WORLD_SIZE"]) > 1:
    dist.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
job = ft.attach(model=model, optimizer=optimizer)
for _ in job.steps(40):
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
if dist.is_initialized():
    dist.barrier()
    dist.destroy_process_group()

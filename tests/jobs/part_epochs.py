"""A training over epochs whose data comes in parts, with one schedule over all of them.

`<out>/<part>.json`: a digest of the weights, the last learning rate, samples consumed, and the numbers of the epochs
that were begun.
"""

import argparse
import hashlib
import json
import time
from pathlib import Path

import quick  # noqa: F401 - before torch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ftlaunch_hooks as ft

parser = argparse.ArgumentParser()
parser.add_argument("--part", type=int, default=1)
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--leave-after", type=int, help="the number of the epoch behind which the loop is left by break")
parser.add_argument("--total", type=int, default=40, help="length of the schedule, in steps")
parser.add_argument("--step-time", type=float, default=0.0)
parser.add_argument("--out", type=Path, required=True)
args = parser.parse_args()

torch.manual_seed(0)
data = torch.randn(50 + 20 * args.part, 4, generator=torch.Generator().manual_seed(args.part))
model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.2), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.total)
sampler = ft.ResumableBatchSampler(len(data), 8, rank=0, world_size=1, seed=3)
loader = DataLoader(TensorDataset(data), batch_sampler=sampler)
anew = {"sampler": f"part {args.part}"}
job = ft.attach(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler, anew=anew)
begun = []
for epoch in job.epochs(args.epochs):
    begun.append(epoch)
    for (batch,) in job.batches(loader):
        nn.functional.mse_loss(model(batch), batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        time.sleep(args.step_time)
    if epoch == args.leave_after:
        break
job.finish()
weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
told = {"weights": hashlib.sha256(weights).hexdigest(), "lr": scheduler.get_last_lr(), "step": job.step}
args.out.mkdir(exist_ok=True)
(args.out / f"{args.part}.json").write_text(json.dumps({**told, "epochs": begun, "consumed": sampler.consumed}))

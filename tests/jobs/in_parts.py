"""A training whose data comes in parts, or whose schedule is another from some step on.

`<out>/<part>.json`: a digest of the weights, the last learning rate, samples consumed, and the indices of the part's
last batch.
"""

import argparse
import hashlib
import json
import time
from pathlib import Path

import quick  # noqa: F401 - before torch
import torch
from torch import nn

import ftlaunch_hooks as ft

parser = argparse.ArgumentParser()
parser.add_argument("--part", type=int, default=1)
parser.add_argument("--data", type=int, help="the part whose data it takes, if it is another")
parser.add_argument("--until", type=int, required=True)
parser.add_argument("--total", type=int, default=40, help="length of the schedule, in steps")
parser.add_argument("--anew", nargs="*", default=["sampler"], choices=["sampler", "scheduler"])
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--step-time", type=float, default=0.0)
parser.add_argument("--out", type=Path, required=True)
args = parser.parse_args()

torch.manual_seed(0)
part = args.data or args.part
data = torch.randn(50 + 20 * part, 4, generator=torch.Generator().manual_seed(part))
model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.2), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.total)
sampler = ft.ResumableBatchSampler(len(data), args.batch, rank=0, world_size=1, seed=3, endless=True)
anew = dict.fromkeys(args.anew, f"part {args.part}")
job = ft.attach(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler, anew=anew)
last = [0]
for _, indices in zip(job.steps(args.until), sampler, strict=False):
    nn.functional.mse_loss(model(data[indices]), data[indices]).backward()
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    last = list(indices)
    time.sleep(args.step_time)
weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
told = {"weights": hashlib.sha256(weights).hexdigest(), "lr": scheduler.get_last_lr(), "last": last}
args.out.mkdir(exist_ok=True)
(args.out / f"{args.part}.json").write_text(json.dumps({**told, "consumed": sampler.consumed}))

"""A tiny DDP job whose numbers go wrong as it is told. Two parameters and a sampler that does not shuffle.

Each rank leaves `<out>/seen_<attempt>_<rank>`: a line a step, its number and the indices of its samples.
"""

import argparse
import math
import os
import time
from pathlib import Path

import quick  # noqa: F401 - before torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import ftlaunch_hooks as ft

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=24)
parser.add_argument("--step-time", type=float, default=0.05)
parser.add_argument("--poison", type=int, default=-1, help="this sample is NaN")
parser.add_argument("--high", type=int, nargs=2, default=(0, 0), help="the loss told of these samples is high")
parser.add_argument("--told-nan", type=int, default=-1, help="NaN is told of this step, though it is none")
parser.add_argument("--raise", dest="raises", action="store_true", help="raise where the loss is NaN")
parser.add_argument("--flip", type=int, nargs=2, default=(-1, -1), help="rank and step: a bit flips after it")
parser.add_argument("--saved", type=Path, help="in the tenth step, wait until this file of a save is there")
args = parser.parse_args()
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
BATCH, LENGTH = 4, 4096
args.out.mkdir(parents=True, exist_ok=True)


def fired(what: str) -> None:
    with (args.out / "fired").open("a") as file:
        file.write(f"{what} {RANK} {ATTEMPT}\n")


torch.manual_seed(1)
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
features = torch.randn(LENGTH, 8)
if args.poison >= 0:
    features[args.poison] = math.nan
sampler = ft.ResumableBatchSampler(LENGTH, BATCH, rank=RANK, world_size=WORLD, shuffle=False, endless=True)
job = ft.attach(model=model, optimizer=optimizer, sampler=sampler)
batches = iter(DataLoader(TensorDataset(torch.arange(LENGTH), features), batch_sampler=sampler))
seen = (args.out / f"seen_{ATTEMPT}_{RANK}").open("a")
for step in job.steps(args.steps):
    number = step + 1
    numbers, inputs = next(batches)
    seen.write(f"{number} {' '.join(map(str, numbers.tolist()))}\n")
    seen.flush()
    time.sleep(args.step_time)
    while args.saved and number == 10 and not args.saved.exists():
        time.sleep(0.01)
    optimizer.zero_grad()
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    told = loss.item()
    if not math.isfinite(told):
        fired("nan")
    if args.high[0] <= numbers[0] < args.high[1]:
        told += 100
        fired("high")
    if number == args.told_nan and ATTEMPT == 0:
        told = math.nan
        fired("told")
    if [RANK, number] == list(args.flip) and ATTEMPT == 0:
        weight = model.module[2].weight.data.view(torch.int32)
        weight[0, 3] ^= 1 << 20
        fired("flip")
    job.step_done(loss=told)
    if args.raises and not math.isfinite(told):
        raise FloatingPointError(f"loss is {told}")
dist.destroy_process_group()
time.sleep(0.2)

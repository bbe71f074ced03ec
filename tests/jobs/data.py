"""A job that writes down every sample it sees: DDP on gloo, a DataLoader with workers, any number of ranks.

A step leaves a line in `<out>/seen_<life>_<rank>`: step, exact loss, samples. FAULT="sigkill rank step [attempt]"
is a fault in the body of that step, as in tiny.py; LIFE numbers the starts of the job.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import quick  # noqa: F401 - before torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import ConcatDataset, DataLoader

import ftlaunch_hooks as ft

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--step-time", type=float, default=0.0)
parser.add_argument("--length", type=int, default=101)
parser.add_argument("--workers", type=int, default=1, help="of torchdata's loader")
parser.add_argument("--by", choices=["sampler", "mix", "torchdata"], default="sampler")
args = parser.parse_args()
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
AT = [*map(int, os.environ.get("FAULT", "sigkill -1 -1").split()[1:]), 0][:3]
args.out.mkdir(parents=True, exist_ok=True)

if WORLD > 1:
    dist.init_process_group("gloo")
torch.manual_seed(5 + RANK)
model: nn.Module = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.2), nn.Linear(8, 1))
if WORLD > 1:
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

lengths = [args.length, args.length // 3]
everything = ConcatDataset([range(length) for length in lengths])  # a sample is its number in its data set
if args.by == "sampler":
    data = {"sampler": ft.ResumableBatchSampler(args.length, 3, rank=RANK, world_size=WORLD, tail="keep", endless=True)}
    loader = DataLoader(range(args.length), batch_sampler=data["sampler"], num_workers=1)
elif args.by == "mix":
    data = {"mix": ft.ResumableMixSampler(lengths, [2, 1], 3, rank=RANK, world_size=WORLD)}
    loader = DataLoader(everything, batch_sampler=data["mix"], num_workers=1)
else:
    from torchdata.stateful_dataloader import StatefulDataLoader

    mine = range(RANK, args.length, WORLD)
    loader = StatefulDataLoader(mine, batch_size=3, shuffle=True, num_workers=args.workers)
    data = {"loader": loader}

job = ft.attach(model=model, optimizer=optimizer, **data)
batches = iter(loader)  # before the loop begins: it draws from torch's generator
seen = (args.out / f"seen_{os.environ.get('LIFE', '0')}.{ATTEMPT}_{RANK}").open("a", buffering=1)
for step in job.steps(args.steps):
    batch = next(batches, None)
    if batch is None:  # torchdata's epochs end
        batches = iter(loader)
        batch = next(batches)
    loss = model(batch.float().view(-1, 1) / 100).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if [RANK, step, ATTEMPT] == AT:
        (args.out / "fired").write_text(f"{step}\n")
        os.kill(os.getpid(), signal.SIGKILL)
    seen.write(f"{step} {loss.item().hex()} {' '.join(map(str, batch.tolist()))}\n")
    time.sleep(args.step_time)

if WORLD > 1:
    dist.destroy_process_group()
    time.sleep(0.2)  # see tiny.py

"""A job that draws random numbers wherever a script may: in the data set, by a generator of its own, in the loop.

It takes its batches from a generator function, which makes the DataLoader's iterator at its first batch, in the loop.
Rank 0 has a worker that augments, on rank 1 the training loop does. FAULT="sigkill rank step" is a fault in the
body of that step, in attempt 0. Losses go to `<out>/loss_<rank>.csv`.
"""

import argparse
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import quick  # noqa: F401 - before torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import ftlaunch_hooks as ft

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--step-time", type=float, default=0.0)
args = parser.parse_args()
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
AT = [*map(int, os.environ.get("FAULT", "sigkill -1 -1").split()[1:]), 0]
args.out.mkdir(parents=True, exist_ok=True)


class Augmented(Dataset[torch.Tensor]):
    """Samples that are never twice the same."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> torch.Tensor:
        return index / 50 + random.random() + float(np.random.rand()) + torch.randn(4)


def batches(loader: DataLoader[torch.Tensor]) -> Iterator[torch.Tensor]:
    yield from loader


def shifts(first: int) -> Iterator[torch.Tensor]:
    """Batches of one, at a position that the script keeps itself. Making this iterator draws from torch's generator."""
    yield from DataLoader(range(1000), batch_sampler=[[number] for number in range(first, 1000)])  # type: ignore


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(5 + RANK)
    random.seed(RANK)
    np.random.seed(RANK)
    noise = np.random.default_rng(RANK)  # nobody attaches it
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sampler = ft.ResumableBatchSampler(50, 3, rank=RANK, world_size=WORLD, tail="keep", endless=True)
    loader = batches(DataLoader(Augmented(), batch_sampler=sampler, num_workers=1 - RANK))
    job = ft.attach(model=model, optimizer=optimizer, sampler=sampler)
    losses = (args.out / f"loss_{RANK}.csv").open("a", buffering=1)
    shift = shifts(job.step)
    for step in job.steps(args.steps):
        moved = next(shift) / 1000
        job.restore_rng()
        batch = next(loader) + moved
        loss = model(batch).square().mean() * (1 + noise.random()) + torch.rand(1).item() * 0.1 * model(batch).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if [RANK, step, job.attempt] == AT:
            (args.out / "fired").write_text(f"{step}\n")
            os.kill(os.getpid(), signal.SIGKILL)
        losses.write(f"{step} {loss.item().hex()}\n")
        time.sleep(args.step_time)
    dist.destroy_process_group()
    time.sleep(0.2)  # see tiny.py


if __name__ == "__main__":
    main()

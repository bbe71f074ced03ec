"""Three trainings of one process, one after the other: `trainings.py --out OUT`, DDP on gloo.

The second goes on with the model of the first one and another optimizer, in a loop of its own; the third has a model of
its own. FAULT="rank step; ...": that rank is killed in the body of that step in attempt 0, 1, ...; `rank between1`: it
is killed between the first and the second training. Losses go to `<out>/loss_<rank>.csv`, what is seen between two
trainings to `<out>/between_<rank>`, a digest of all that was trained to `<out>/final_<rank>`.
"""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import quick  # noqa: F401 - before torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ftlaunch_hooks as ft

OUT, WORLD = Path(sys.argv[2]), int(os.environ.get("WORLD_SIZE", "1"))
FIRST = int(os.environ.get("FIRST", "10"))
RANK, ATTEMPT = int(os.environ.get("RANK", "0")), int(os.environ.get("FTLAUNCH_ATTEMPT", "0"))
PLAN = dict(enumerate(os.environ.get("FAULT", "").split(";")))
PACE = float(os.environ.get("PACE", "0"))
OUT.mkdir(exist_ok=True)
losses = (OUT / f"loss_{RANK}.csv").open("a", buffering=1)


def disturb(where: str) -> None:
    if PLAN.get(ATTEMPT, "").split() == [str(RANK), where]:
        with (OUT / "fired").open("a") as file:
            file.write(f"{where} {RANK} {ATTEMPT}\n")
        os.kill(os.getpid(), signal.SIGKILL)


def wrapped(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model) if WORLD > 1 else model


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    disturb(str(step))
    x = torch.randn(4, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.write(f"{step} {loss.item().hex()}\n")
    time.sleep(PACE)
    return loss.item()


def between(number: int, model: nn.Module) -> None:
    disturb(f"between{number}")
    with torch.no_grad(), (OUT / f"between_{RANK}").open("a") as file:
        file.write(f"{number} {model(torch.ones(1, 8)).item().hex()} {torch.rand(1).item().hex()}\n")


def main() -> None:
    torch.manual_seed(7 + RANK)
    body, head = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2)), nn.Linear(8, 1)
    model = wrapped(nn.Sequential(body, head))
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sampler = ft.ResumableBatchSampler(4096, 4, rank=RANK, world_size=WORLD, seed=3, endless=True)
    job = ft.attach(model=model, optimizer=optimizer, sampler=sampler)
    for step in job.steps(FIRST):
        step_of(model, optimizer, step)
    between(1, nn.Sequential(body, head))

    optimizer = torch.optim.SGD(head.parameters(), lr=0.001, momentum=0.9)
    for parameter in body.parameters():
        parameter.requires_grad_(False)
    model = wrapped(nn.Sequential(body, head))
    job = ft.attach(training="tune", tuned=model, momentum=optimizer)
    while job.step < job.began_at + 8:
        job.step_done(loss=step_of(model, optimizer, job.step))
    job.finish()
    between(2, nn.Sequential(body, head))

    other = wrapped(nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(other.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
    job = ft.attach(training="other", model=other, optimizer=optimizer, scheduler=scheduler)
    for step in job.steps(job.began_at + 10):
        step_of(other, optimizer, step)
        scheduler.step()

    digest = hashlib.sha256()
    for one in (body, head, other):
        for tensor in one.state_dict().values():
            digest.update(tensor.numpy().tobytes())
    digest.update(torch.get_rng_state().numpy().tobytes())
    (OUT / f"final_{RANK}").write_text(digest.hexdigest())


if WORLD > 1:
    dist.init_process_group("gloo")
main()
if WORLD > 1:
    dist.destroy_process_group()
    time.sleep(0.2)  # torch 2.13 may abort when the interpreter ends right after the last collective

"""Trains a small network, is killed once, and differs after that where it is told to.

FT_DIFFERS: `nothing`; `state`, a number that is set in mid-run and that nobody keeps; `threads`, another number of
threads after the kill; `rates`, a learning rate of its own. FT_KILL: `rank:step:where`, once; where is `before` the
loss, or `after` the optimizer's step. FT_COMMITTED: the kill waits until there is a checkpoint.
"""

import os
import signal
import time
from pathlib import Path

import quick  # noqa: F401 - before torch
import torch
import torch.distributed as dist
from torch import nn

import ftlaunch_hooks as ft

OUT = Path(os.environ["FT_OUT"])
RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
DIFFERS = os.environ.get("FT_DIFFERS", "nothing")
STEPS = int(os.environ.get("FT_STEPS", "20"))
ATTEMPT = int(os.environ.get("FTLAUNCH_ATTEMPT", "0"))


class Unkept:
    """Holds a function that nobody can save: it begins anew."""

    def __init__(self):
        self.scale = lambda: 1.0


def die(step: int, where: str) -> None:
    mark = OUT / "killed"
    if os.environ.get("FT_KILL") == f"{RANK}:{step}:{where}" and not mark.exists():
        if "FT_COMMITTED" in os.environ:
            checkpoints = Path(os.environ["FTLAUNCH_CHECKPOINT_DIR"])
            deadline = time.monotonic() + 60
            while not any(checkpoints.glob("iteration_???????")):
                assert time.monotonic() < deadline, "there is no checkpoint"
                time.sleep(0.01)
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def train() -> None:
    torch.manual_seed(RANK)
    torch.set_num_threads(2 if DIFFERS == "threads" and ATTEMPT else 1)
    model = nn.Linear(16, 4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    unkept = Unkept()
    wide = torch.rand(1 << 20)
    job = ft.attach(model=model, optimizer=optimizer)
    for step in job.steps(STEPS):
        if step == 3 and DIFFERS == "state":
            unkept.scale = lambda: 0.5
        if step == 11 and DIFFERS == "rates":
            optimizer.param_groups[0]["lr"] = 0.05 / (1 + ATTEMPT)
        time.sleep(0.04)  # of shorter steps not every one is noted in full
        die(step, "before")
        spread = (wide * (step + 1.1)).sum() / wide.numel() if DIFFERS == "threads" else 1.0
        loss = (model(torch.randn(32, 16)) - unkept.scale()).square().mean() * spread
        optimizer.zero_grad()
        loss.backward()
        if WORLD > 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        die(step, "after")
    (OUT / f"final_{RANK}").write_text(model.weight.detach().numpy().tobytes().hex())


if WORLD > 1:
    dist.init_process_group("gloo")
train()

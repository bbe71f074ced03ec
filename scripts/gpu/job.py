"""A rank that notes how far it has come and when, and kills itself once, to measure a restart with a GPU.

    job.py DEVICE eager|compile FILE

Each note is a line of FILE: the attempt, what is done, and the moment. No note is kept in this process, because a
resume would restore the notes of the attempt before.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

FIRST_LINE = time.monotonic()

import torch  # noqa: E402 - its import is measured
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import ftlaunch_hooks as ft  # noqa: E402

DEATH = 5  # the step after which the first attempt kills itself
STEPS = 10


def note(what: str, moment: float | None = None) -> None:
    """Note that something is done, with the work of the device. moment: monotonic seconds; None is now."""
    if moment is None:
        if sys.argv[1] == "cuda":
            torch.cuda.synchronize()
        moment = time.monotonic()
    with Path(sys.argv[3]).open("a") as file:
        file.write(json.dumps([int(os.environ["TORCHELASTIC_RESTART_COUNT"]), what, moment]) + "\n")


def main() -> None:
    """Train, die, and resume, with a note after each part."""
    device, way, _ = sys.argv[1:]
    note("first line", FIRST_LINE)
    note("torch imported", time.monotonic())
    torch.zeros(1, device=device)
    note("device ready")
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    dist.all_reduce(torch.ones(1, device=device))
    note("process group ready")
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(16))).to(device)  # 256 MiB, and twice that of Adam
    trained = torch.compile(model) if way == "compile" else model
    optimizer = torch.optim.AdamW(model.parameters())
    note("model made")
    job = ft.attach(model=model, optimizer=optimizer)
    note("state restored")
    for step in job.steps(STEPS):
        trained(torch.randn(64, 2048, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        note("step")
        if step == DEATH and job.attempt == 0:
            note("death")
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()

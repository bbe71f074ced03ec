"""A rank that notes when it has come how far, and kills itself once: what a restart with a GPU is made of.

job.py DEVICE eager|compile FILE
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

NOTES = [("first line", time.monotonic())]

import torch  # noqa: E402 - its import is measured
from torch import nn  # noqa: E402

import ftlaunch_hooks as ft  # noqa: E402

DEATH, STEPS = 5, 10


def note(what: str) -> None:
    """Note that something is done; the device's work, too."""
    if NOTES[-1][0] != "torch imported" and sys.argv[1] == "cuda":
        torch.cuda.synchronize()
    NOTES.append((what, time.monotonic()))


def main() -> None:
    """Train, die, go on, and tell."""
    device, way, file = sys.argv[1:4]
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    NOTES.append(("torch imported", time.monotonic()))
    torch.zeros(1, device=device)
    note("device ready")
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
        if len(NOTES) < 6:
            note("first step")
        if step == DEATH and attempt == 0:
            with open(file, "a") as out:  # noqa: PTH123
                out.write(json.dumps([*NOTES, ("death", time.monotonic())]) + "\n")
            os.kill(os.getpid(), signal.SIGKILL)
    with open(file, "a") as out:  # noqa: PTH123
        out.write(json.dumps(NOTES) + "\n")


if __name__ == "__main__":
    main()

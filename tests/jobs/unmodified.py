"""A training script that knows nothing of ftlaunch. FAULT="kind rank step" in attempt 0; `<out>/fired` says it fired.

kinds: sleep (no step any more), spin (busy, no step), evaluate (busy for a while, then goes on), before (sleeps before
the first step), fork (a forked child makes steps for a while, the rank waits).
"""

import os
import sys
import time
from pathlib import Path

import quick  # noqa: F401 - before torch
import torch

out, steps, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
kind, *where = os.environ.get("FAULT", "none -1 -1").split()
strikes = where[0] == os.environ["RANK"] and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":  # the warm parent imports it later
    assert "ftlaunch_hooks.job.job" not in sys.modules


def fired() -> None:
    with (out / "fired").open("a") as file:
        file.write(f"{kind}\n")


model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train() -> None:
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def busy(for_seconds: float) -> None:
    end = time.monotonic() + for_seconds
    while time.monotonic() < end:
        torch.ones(64, 64).matmul(torch.ones(64, 64))


def fork() -> None:
    child = os.fork()
    if child == 0:
        for _ in range(2000):
            train()
            time.sleep(0.01)
        os._exit(0)
    time.sleep(1000)


out.mkdir(parents=True, exist_ok=True)
if strikes and kind == "before":
    fired()
    time.sleep(1000)
for step in range(steps):
    if strikes and [str(step)] == where[1:] and kind in ("sleep", "spin", "evaluate", "fork"):
        fired()
        {"sleep": lambda: time.sleep(1000), "spin": lambda: busy(1000), "evaluate": lambda: busy(5), "fork": fork}[
            kind
        ]()
    train()
    time.sleep(seconds)

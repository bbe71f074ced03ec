"""Draws without a seed, and walks through a set, before attach(); trains a little.

unseeded.py OUT [STEPS]. Each rank adds a line `ATTEMPT RANK what=digest ...` to OUT/draws. Dies once, at step 5, where
OUT/die is there. STEP_TIME: seconds of each step.
"""

import hashlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import quick  # noqa: F401 - before torch
import torch

import ftlaunch_hooks as ft

out, steps = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10
rank = os.environ["RANK"]


def digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]


drawn = {
    "set": list({f"word{number}" for number in range(100)}),
    "random": random.random(),
    "numpy": np.random.permutation(100).tolist(),
    "torch": torch.randperm(100).tolist(),
}
with (out / "draws").open("a") as file:
    file.write(f"{os.environ['FTLAUNCH_ATTEMPT']} {rank} {' '.join(f'{k}={digest(v)}' for k, v in drawn.items())}\n")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(steps):
    optimizer.zero_grad()
    model(torch.randn(4, 4)).square().mean().backward()
    optimizer.step()
    time.sleep(float(os.environ.get("STEP_TIME", "0")))
    if step == 5 and rank == "1" and (out / "die").exists():
        (out / "die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)

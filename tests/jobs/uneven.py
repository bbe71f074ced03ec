"""DistributedDataParallel with uneven inputs (Join): uneven.py OUT STEPS_OF_RANK_0 STEPS_OF_RANK_1.

FAULT="RANK STEP": that rank is killed there in attempt 0. SLEEP="RANK STEP": it sleeps there in attempt 0.
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
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import ftlaunch_hooks as ft

OUT, RANK, ATTEMPT = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["FTLAUNCH_ATTEMPT"])
STEPS = int(sys.argv[2 + RANK])
OUT.mkdir(exist_ok=True)


def here(name: str, step: int) -> bool:
    if ATTEMPT > 0 or os.environ.get(name) != f"{RANK} {step}":
        return False
    with (OUT / "fired").open("a") as file:
        file.write(f"{name} {RANK} {step}\n")
    return True


dist.init_process_group("gloo")
torch.manual_seed(3 + RANK)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
job = ft.attach(model=model, optimizer=optimizer)
losses = (OUT / f"loss_{RANK}.csv").open("a", buffering=1)
with Join([model]):
    for step in job.steps(STEPS):
        if here("FAULT", step):
            os.kill(os.getpid(), signal.SIGKILL)
        if here("SLEEP", step):
            time.sleep(1000)
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        losses.write(f"{step} {loss.item().hex()}\n")
        time.sleep(0.02)
digest = hashlib.sha256(model.module.weight.detach().numpy().tobytes()).hexdigest()
(OUT / f"final_{RANK}").write_text(digest)
dist.destroy_process_group()
time.sleep(0.2)  # torch 2.13 may abort when the interpreter ends right after the last collective

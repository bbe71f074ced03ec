"""A loop of the script's own that says how it is saved: `asks.py --out OUT STEPS EVERY KEEP MEMORY [AHEAD]`.

EVERY, KEEP, MEMORY: steps between checkpoints, how many are kept, steps between snapshots. AHEAD: by how much the
script's count of steps is ahead. FAULT="RANK STEP": that rank is killed behind that step in attempt 0, once the
checkpoint AWAITED is committed.
OTHERWISE="RANK": that rank asks for one checkpoint more to be kept.
"""

import os
import signal
import sys
import time
from pathlib import Path

import quick  # noqa: F401 - before torch
import torch
import torch.distributed as dist

import ftlaunch_hooks as ft
from ftlaunch_contract.saving_request import SavingRequest

OUT = Path(sys.argv[2])
STEPS, EVERY, KEEP, MEMORY, AHEAD = map(int, [*sys.argv[3:], "0"][:5])
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
ATTEMPT = int(os.environ.get("FTLAUNCH_ATTEMPT", "0"))
OUT.mkdir(parents=True, exist_ok=True)
if WORLD > 1:
    dist.init_process_group("gloo")
torch.manual_seed(5)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
job = ft.attach(model=model, optimizer=optimizer)
more = os.environ.get("OTHERWISE") == str(RANK)
given = job.ask_saves(SavingRequest(memory_steps=MEMORY, steps=EVERY, ahead=AHEAD, keep=KEEP + more))
if RANK == 0:
    (OUT / "given").write_text(repr(given))
while job.step < STEPS:
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    for parameter in model.parameters():
        if WORLD > 1:
            dist.all_reduce(parameter.grad)
    optimizer.step()
    job.step_done()
    if os.environ.get("FAULT") == f"{RANK} {job.step}" and ATTEMPT == 0:
        while not Path(os.environ["AWAITED"]).exists():
            time.sleep(0.001)
        with (OUT / "fired").open("a") as file:
            file.write(f"killed {RANK} {ATTEMPT}\n")
        os.kill(os.getpid(), signal.SIGKILL)
job.finish()
if WORLD > 1:
    dist.destroy_process_group()

"""A small job: a process group, and steps with an all-reduce each. Rank 1 kills itself when it is ordered to.

The ranks write the notes of scripts/bench/jobs/notes.py to the file BENCH_NOTES. The order to die is the existence of
the file `<BENCH_NOTES>.kill`.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "bench/jobs"))

from notes import RANK, note

note("line")

import torch
import torch.distributed as dist

order = Path(os.environ["BENCH_NOTES"] + ".kill")
dist.init_process_group("gloo")
note("ready")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
while True:
    model(torch.randn(4, 8)).square().mean().backward()
    with suppress(FileNotFoundError):
        if RANK == 1:
            order.unlink()
            note("dies", step)
            os.kill(os.getpid(), signal.SIGKILL)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    time.sleep(0.02)

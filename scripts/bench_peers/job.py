"""A job whose ranks share nothing: each has BENCH_MIB MiB of state, all of which changes at every step.

In each step the ranks sum up BENCH_REDUCED_MIB MiB, or a single number if the variable is not set. The ranks write the
notes of scripts/bench/jobs/notes.py to the file BENCH_NOTES.
"""

import os
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "bench/jobs"))

from notes import RANK, note

import torch
import torch.distributed as dist

import ftlaunch_hooks as ft

STEPS = int(os.environ["BENCH_STEPS"])
STEP_SECONDS = float(os.environ["BENCH_STEP_SECONDS"])
REDUCED = int(os.environ.get("BENCH_REDUCED_MIB", "0")) << 18 or 1  # numbers of 4 bytes


class Shard(torch.nn.Module):
    """A rank's own part of the state."""

    def __init__(self, mib: int) -> None:
        super().__init__()
        self.register_buffer("part", torch.full((mib << 18,), float(RANK)))


dist.init_process_group("gloo")
shard = Shard(int(os.environ["BENCH_MIB"]))
note("ready")
job = ft.attach(shard=shard)
note("attached", job.step)
step_ends = time.monotonic()
for step in job.steps(STEPS):
    shard.part[:: 1 << 16] += 1.0
    together = torch.ones(REDUCED)
    dist.all_reduce(together)
    step_ends = max(step_ends + STEP_SECONDS, time.monotonic())
    time.sleep(max(step_ends - time.monotonic(), 0))
    note("step", step + 1)

"""Measures what copies cost a job that fills the link between its machines.

Two machines of one rank each have links of limited bandwidth. The ranks sum up tensors without a pause, so that the
link is always busy; each rank has state of its own, which is copied to the other machine. The same job runs without
copies, with the default, and with a copy every few steps, with and without a limit of the copies' bandwidth.
"""

from __future__ import annotations

import statistics
import sys
from itertools import pairwise
from pathlib import Path

sys.path += [str(Path(__file__).parents[1])]

from lost import NODES, StateJob
from machines.namespaces import Machines

MIB = 1 << 20
LINK = 400_000  # kbit/s, each way
REDUCED = 8  # MiB that the ranks sum up in each step
STATE = 64  # MiB of each rank
LIMIT = "5MB/s"
WARM_UP = 20  # steps
MEASURED = 80  # steps
EVERY = ("--peer-interval", "8")
MODES = {
    "the default": (),
    f"the default, --peer-bandwidth {LIMIT}": ("--peer-bandwidth", LIMIT),
    "a copy every 8 steps": EVERY,
    f"a copy every 8 steps, --peer-bandwidth {LIMIT}": (*EVERY, "--peer-bandwidth", LIMIT),
}


def measure(home: Path, rounds: int) -> dict[str, list[float]]:
    """Return, for each mode and round, the mean step divided by the mean step without copies."""
    found: dict[str, list[float]] = {name: [] for name in MODES}
    for number in range(rounds):
        without = _step_seconds(home / f"{number}-without", "--peer-interval", "0")
        for at, (name, options) in enumerate(MODES.items()):
            found[name].append(_step_seconds(home / f"{number}-{at}", *options) / without)
    return found


def _step_seconds(home: Path, *options: str) -> float:
    """Return the mean step of rank 0, in seconds."""
    with Machines(NODES) as machines:
        for machine in machines.all:
            machine.slow(LINK)
        job = StateJob(home, machines, STATE, 0.0, *options)
        job.env["BENCH_REDUCED_MIB"] = str(REDUCED)
        for number in range(NODES):
            job.start(number, "--node-rank", str(number), env=job.env)
        began = job.wait_step(0.0, WARM_UP)
        job.wait_step(began, MEASURED)
        made = [at for rank, at, _ in job.steps(began) if rank == 0]
        return statistics.mean(after - before for before, after in pairwise(made))

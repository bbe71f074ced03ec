"""A machine is lost whose state is on no other one: how long until all ranks make a new step; and what copies cost.

Two machines of one rank each, and one that stands by. The link of a machine is cut: the job goes on from the copy of
its rank's snapshot on the other machine. Beside it the same job with and without copies, whose steps are compared.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

sys.path += [str(Path(__file__).parents[1])]

from machines.job import NodesJob
from machines.namespaces import Machines

JOB = Path(__file__).with_name("job.py")
NODES, PATIENCE = 2, 120.0
FENCE = 3.3  # seconds from the last word of a machine until its ranks must have ended


class StateJob(NodesJob):
    """One run of the job on machines of its own."""

    def __init__(self, home: Path, machines: Machines, mib: int, step_seconds: float, *options: str) -> None:
        command = ["--storage-interval", "off", "--backoff-first", "1ms", *options, str(JOB)]
        super().__init__(machines.all, home, home.name, NODES, command, 1)
        self.made, self.notes = machines, home / "notes"
        self.notes.touch()
        about = {"BENCH_MIB": str(mib), "BENCH_STEP_SECONDS": str(step_seconds), "BENCH_STEPS": "100000"}
        self.env = {**about, "BENCH_NOTES": str(self.notes), "OMP_NUM_THREADS": "1"}

    def start_all(self) -> None:
        """The agents of the job, then one that stands by. Raises AssertionError."""
        for number in range(NODES):
            self.start(number, "--node-rank", str(number), env=self.env)
        self.wait_step(0.0, 3)
        self.start(NODES, env=self.env)
        self.wait(lambda: "this node stands by" in self.said(NODES), "standby")

    def steps(self, since: float) -> Iterator[tuple[int, float, int]]:
        """Rank, time and step of each step that was noted after a time."""
        for line in self.notes.read_text().split("\n")[:-1]:
            kind, rank, _, at, step = line.split()
            if kind == "step" and float(at) > since:
                yield int(rank), float(at), int(step)

    def wait_step(self, since: float, count: int = 1) -> float:
        """When all ranks have made so many steps after a time."""

        def made() -> dict[int, list[float]]:
            found: dict[int, list[float]] = {}
            for rank, at, _ in self.steps(since):
                found.setdefault(rank, []).append(at)
            return found

        self.wait(lambda: len(made()) == NODES and all(len(one) >= count for one in made().values()), "new steps")
        return max(one[count - 1] for one in made().values())

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        """Raises AssertionError."""
        until = time.monotonic() + PATIENCE
        while not ready():
            assert time.monotonic() < until, f"no {what} in {PATIENCE:.0f} s:\n{self.said(0)}"
            time.sleep(0.005)


@contextmanager
def running(home: Path, mib: int, step_seconds: float, *options: str) -> Iterator[StateJob]:
    """A job whose standby is there."""
    with Machines(NODES + 1) as machines:
        job = StateJob(home, machines, mib, step_seconds, *options)
        job.start_all()
        yield job


def lose(home: Path, mib: int, step_seconds: float) -> Mapping[str, float]:
    """Figures of one lost machine."""
    with running(home, mib, step_seconds, "--memory-interval", "1", "--peer-interval", "4") as job:
        job.wait_step(0.0, 24)
        cut = time.monotonic()
        job.made[1].cut()
        took = job.wait_step(cut + FENCE / 2) - cut
        job.wait(lambda: len(job.events("resumed")) > 1, "resume in the journal")
        fetched, resumed = job.events("fetched")[-1], job.events("resumed")[-1]
        assert resumed["source"] == "peer", job.said(0)
        [row] = fetched["nodes"]
        return {
            "to the first new step": took,
            "without the silence": took - FENCE,
            "fetch": row["seconds"],
            "fetched, GB/s": row["bytes"] / row["seconds"] / 1e9,
            "steps lost": resumed["steps_lost"],
        }


def step_times(home: Path, mib: int, step_seconds: float, *options: str) -> list[float]:
    """Seconds of each step of rank 0, in the calm, without the first half."""
    with running(home, mib, step_seconds, *options) as job:
        began = job.wait_step(0.0, 20)
        job.wait_step(began, 200)
        made = [at for rank, at, _ in job.steps(began) if rank == 0]
        return [after - before for before, after in pairwise(made)]


def cost(home: Path, mib: int, step_seconds: float) -> float:
    """Mean step with copies by default, by the mean step without."""
    home.mkdir()
    with_copies = step_times(home / "with", mib, step_seconds)
    without = step_times(home / "without", mib, step_seconds, "--peer-interval", "0")
    return statistics.mean(with_copies) / statistics.mean(without)

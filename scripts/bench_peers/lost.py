"""Measures the loss of a machine whose state is on no other machine but as a copy, and what copies cost.

Two machines have one rank each, and a third stands by. The link of a machine is cut: the job resumes from the copy of
the rank's snapshot on the other machine. The same job also runs undisturbed, with and without copies, to compare steps.
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
NODES = 2
PATIENCE = 120.0  # seconds
FENCE = 3.3  # seconds from a machine's last word until its ranks must have ended


class StateJob(NodesJob):
    """One run of the job on machines of its own."""

    def __init__(self, home: Path, machines: Machines, mib: int, step_seconds: float, *options: str) -> None:
        """Prepare the job.

        Args:
            home: a folder for files.
            machines: the machines.
            mib: MiB of each rank's state.
            step_seconds: seconds of a step.
            options: options of ftlaunch.
        """
        command = ["--storage-interval", "off", "--backoff-first", "1ms", *options, str(JOB)]
        super().__init__(
            machines=machines.all,
            home=home,
            name=home.name,
            nodes=NODES,
            command=command,
            ranks=1,
        )
        self.made = machines
        self.notes = home / "notes"
        self.notes.touch()
        about = {"BENCH_MIB": str(mib), "BENCH_STEP_SECONDS": str(step_seconds), "BENCH_STEPS": "100000"}
        self.env = {**about, "BENCH_NOTES": str(self.notes), "OMP_NUM_THREADS": "1"}

    def start_all(self) -> None:
        """Start the agents of the job, and then an agent that stands by. Raises AssertionError."""
        for number in range(NODES):
            self.start(number, "--node-rank", str(number), env=self.env)
        self.wait_step(0.0, 3)
        self.start(NODES, env=self.env)
        self.wait(lambda: "this node stands by" in self.said(NODES), "standby")

    def steps(self, since: float) -> Iterator[tuple[int, float, int]]:
        """Yield rank, time and step of each step that was noted after `since`."""
        for line in self.notes.read_text().split("\n")[:-1]:
            kind, rank, _, at, step = line.split()
            if kind == "step" and float(at) > since:
                yield int(rank), float(at), int(step)

    def wait_step(self, since: float, count: int = 1) -> float:
        """Wait until all ranks have made `count` steps after `since`; return when. Raises AssertionError."""

        def made() -> dict[int, list[float]]:
            found: dict[int, list[float]] = {}
            for rank, at, _ in self.steps(since):
                found.setdefault(rank, []).append(at)
            return found

        self.wait(lambda: len(made()) == NODES and all(len(times) >= count for times in made().values()), "new steps")
        return max(times[count - 1] for times in made().values())

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        """Wait until `ready()` is True. Raises AssertionError."""
        until = time.monotonic() + PATIENCE
        while not ready():
            assert time.monotonic() < until, f"no {what} in {PATIENCE:.0f} s:\n{self.said(0)}"
            time.sleep(0.005)


@contextmanager
def running(home: Path, mib: int, step_seconds: float, *options: str) -> Iterator[StateJob]:
    """Run a job with a standby for the time of the context."""
    with Machines(NODES + 1) as machines:
        job = StateJob(home, machines, mib, step_seconds, *options)
        job.start_all()
        yield job


def lose(home: Path, mib: int, step_seconds: float) -> Mapping[str, float]:
    """Cut the link of a machine; return the figures of the resume."""
    with running(home, mib, step_seconds, "--memory-interval", "1", "--peer-interval", "4") as job:
        job.wait_step(0.0, 24)
        cut = time.monotonic()
        job.made[1].cut()
        took = job.wait_step(cut + FENCE / 2) - cut
        job.wait(lambda: len(job.events("resumed")) > 1, "resume in the journal")
        fetched = job.events("fetched")[-1]
        resumed = job.events("resumed")[-1]
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
    """Return the seconds of each undisturbed step of rank 0, after 20 steps of warm-up."""
    with running(home, mib, step_seconds, *options) as job:
        began = job.wait_step(0.0, 20)
        job.wait_step(began, 200)
        made = [at for rank, at, _ in job.steps(began) if rank == 0]
        return [after - before for before, after in pairwise(made)]


def cost(home: Path, mib: int, step_seconds: float) -> float:
    """Return the mean step with copies by default, divided by the mean step without copies."""
    home.mkdir()
    with_copies = step_times(home / "with", mib, step_seconds)
    without = step_times(home / "without", mib, step_seconds, "--peer-interval", "0")
    return statistics.mean(with_copies) / statistics.mean(without)

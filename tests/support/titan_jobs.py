"""Starts tests/jobs/titan.py."""

from __future__ import annotations

from tests.support.harness import JOBS, FtJob

# One thread for torch: with as many ranks as cores, more threads only wait for each other. None for pyarrow, because a
# process with a thread cannot fork ranks.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
FAST = ("--warm", "--preload", "titan_on_cpu", "--backoff-first", "0.05s", "--backoff-max", "0.1s")


def start(job: FtJob, style: str, ranks: int, faults: str = "") -> None:
    """Start the job, and return at once."""
    env = {**ENVIRONMENT, "FAULT": faults}
    job.start(*FAST, script=JOBS / "titan.py", args=(str(job.out), style), ranks=ranks, env=env)


def run(job: FtJob, style: str, ranks: int, faults: str = "") -> int:
    """Run the job to its end; return its exit code."""
    start(job, style, ranks, faults)
    return job.wait(170)

"""Starts tests/jobs/titan.py."""

from __future__ import annotations

from tests.support.harness import JOBS, FtJob

# One thread: several at work on as many cores as there are ranks wait for each other. The other is a thread of
# pyarrow's, beside which no rank can be forked.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
FAST = ("--warm", "--preload", "titan_on_cpu", "--backoff-first", "0.05s", "--backoff-max", "0.1s")


def start(job: FtJob, style: str, ranks: int, faults: str = "") -> None:
    """Start the job, without waiting."""
    env = {**ENVIRONMENT, "FAULT": faults}
    job.start(*FAST, script=JOBS / "titan.py", args=(str(job.out), style), ranks=ranks, env=env)


def run(job: FtJob, style: str, ranks: int, faults: str = "") -> int:
    """The exit code of the whole job."""
    start(job, style, ranks, faults)
    return job.wait(170)

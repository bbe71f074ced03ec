"""Undisturbed jobs that many tests compare with.

The first of pytest's processes that needs such a job runs it, and the others read what it has left.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

import pytest

from tests.support.harness import FtJob


def tiny_job(factory: pytest.TempPathFactory, *, ranks: int, steps: int = 30) -> FtJob:
    """Return the tiny job on one node, which has ended, undisturbed.

    A worker of pytest-xdist that needs the job while another worker runs the job waits for its end.

    Args:
        factory: makes the directories of this run of pytest.
        ranks: the number of ranks.
        steps: the number of steps. How long a step takes changes no result, so these steps take no time.
    """
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # each worker has a directory of its own in the directory of the run
    name = f"undisturbed_{ranks}_ranks_{steps}_steps"
    home = folder / name
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            _run_in(folder / f"{name}.begun", ranks=ranks, steps=steps).rename(home)
    return FtJob(home)


def _run_in(home: Path, *, ranks: int, steps: int) -> Path:
    """Run the job in a directory; return the directory."""
    shutil.rmtree(home, ignore_errors=True)  # left by a worker whose job has failed
    home.mkdir()
    job = FtJob(home)
    try:
        job.start(args=("--out", str(job.out), "--steps", str(steps)), ranks=ranks)
        assert job.wait() == 0, job.stderr
    finally:
        job.dispose()
    return home

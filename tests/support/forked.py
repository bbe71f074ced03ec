"""Tells whether the ranks of a job were forked, and from which process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftlaunch.system.processes import children
from tests.support.harness import JOBS, FtJob

PROBE = JOBS / "warm_probe.py"

by_default = pytest.mark.skipif(
    "FT_TEST_PLAIN" in os.environ, reason="FT_TEST_PLAIN starts all jobs without a warm parent: unset it"
)


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def parents(job: FtJob) -> list[int]:
    """Return the warm parent of a job, as a list of one pid or none."""
    ranks = job.pids() if job.events("attempt_started") else []
    return [pid for pid in children(job.supervisor.pid) if pid not in ranks and "fork_server.py" in command(pid)]


def is_forked(job: FtJob) -> bool:
    """Return whether the ranks were forked.

    The kernel shows the variables with which a program was started; a forked rank has those of its parent.
    """
    environments = (Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in job.pids())
    return not any(variable.startswith(b"RANK=") for variables in environments for variable in variables)

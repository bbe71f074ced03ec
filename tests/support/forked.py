"""Whether the ranks of a job are forked, and from what."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.harness import JOBS, FtJob

PROBE = JOBS / "warm_probe.py"

by_default = pytest.mark.skipif(
    "FT_TEST_PLAIN" in os.environ, reason="FT_TEST_PLAIN starts all jobs without a warm parent: unset it"
)


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def parents(job: FtJob) -> list[int]:
    """The warm parent of a job: a list, for there may be none."""
    ranks = job.pids() if job.events("attempt_started") else []
    return [pid for pid in children(job.supervisor.pid) if pid not in ranks and "fork_server.py" in command(pid)]


def is_forked(job: FtJob) -> bool:
    """Whether the ranks were forked: the kernel shows the variables that a process was started with, as a program."""
    variables = (Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in job.pids())
    return not any(variable.startswith(b"RANK=") for one in variables for variable in one)

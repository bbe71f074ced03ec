"""The supervisor raises its own limit on descriptors, and ranks have the limit that it was started with."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from tests.support.harness import FtJob

_SCRIPT = """
import os, resource
from pathlib import Path
supervisor = os.environ["FTLAUNCH_SUPERVISOR"].partition(":")[0]
limits = [line for line in Path(f"/proc/{supervisor}/limits").read_text().splitlines() if "open files" in line]
Path("limits").write_text(f"{limits[0].split()[3]} {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}")
"""


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


@pytest.mark.parametrize("how", [pytest.param("--warm", marks=pytest.mark.long), "--no-warm"])
def test_ranks_have_the_limit_that_the_supervisor_was_started_with(job: FtJob, how: str) -> None:
    script = job.home / "limits.py"
    script.write_text(_SCRIPT)
    job.start(how, script=script, args=(), ranks=1, preexec_fn=limited)
    assert job.wait() == 0, job.stderr
    supervisor, rank = map(int, Path(job.home / "limits").read_text().split())
    assert rank == 1000
    assert supervisor > 1000

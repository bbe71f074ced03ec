"""What ranks have in /dev/shm of their own is gone once they are, also where they were killed."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from tests.support.harness import JOBS, FtJob
from tests.support.waiting import wait_for

SHM = Path("/dev/shm")


@pytest.mark.long
def test_shared_memory_of_killed_ranks_is_gone(job: FtJob) -> None:
    """Taken out (the sweep kills all at once): FileExistsError in the next attempt, and torch's files are left."""
    tag = f"ft{uuid.uuid4().hex[:12]}"
    job.out.mkdir()
    try:
        job.start("--backoff-first", "0.05s", script=JOBS / "segments.py", args=(str(job.out), tag))
        assert job.wait() == 0, job.stderr + job.log(1, 0)
        assert (job.out / "killed").exists()
        assert len(job.events("incident")) == 1
        pids = (job.out / "pids").read_text().split()
        assert len(set(pids)) >= 8, "two attempts of two ranks with workers"
        wait_for(lambda: not [one for pid in pids for one in SHM.glob(f"torch_{pid}_*")], "the end of torch's files")
        assert list(SHM.glob(f"{tag}*")) == []
    finally:
        for left in SHM.glob(f"{tag}*"):
            left.unlink()

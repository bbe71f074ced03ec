"""Random numbers of workers, of generators of the script and of an iterator made in the loop: all go on bit for bit.

Taken out, each by itself: the seeds of `SeededBatch`, `leave_generators_alone`, `generators.find`,
`Job.restore_rng`. Then losses differ.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.harness import JOBS, FtJob

SCRIPT = JOBS / "augmented.py"


@pytest.fixture
def other_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FtJob]:
    """One that is left undisturbed."""
    job = FtJob(tmp_path_factory.mktemp("undisturbed"))
    yield job
    job.dispose()


def start(job: FtJob, *more: str, fault: str = "") -> None:
    args = ("--out", str(job.out), *more)
    job.start("--storage-interval", "off", script=SCRIPT, args=args, env={"FAULT": fault} if fault else {})


@pytest.mark.long
def test_batches_from_a_generator_with_random_augmentation_go_on_bit_for_bit(job: FtJob, other_job: FtJob) -> None:
    start(other_job)
    assert other_job.wait() == 0, other_job.stderr
    start(job, "--step-time", "0.05", fault="sigkill 1 5")
    job.wait_step(8)
    assert job.fired() == ["5"]
    job.supervisor.terminate()
    assert job.wait() == 75, job.stderr
    start(job)
    assert job.wait() == 0, job.stderr
    resumed = [event["source"] for event in job.events("resumed") if event["source"]]
    assert resumed == ["memory", "storage"]
    for rank in range(2):
        assert job.losses(rank) == other_job.losses(rank)
    job.assert_clean()

"""A large state has its slots prepared beside the training, in jobs that fork, die, resume and end early."""

from __future__ import annotations

import pytest
from tests.support.harness import JOBS, FtJob


def preparing(job: FtJob, attempt: int) -> dict[int, int]:
    """Return how many steps each rank began while it prepared a slot."""
    lines = [line.split() for line in (job.out / "preparing").read_text().splitlines()]
    return {rank: sum(line[:2] == [str(attempt), str(rank)] for line in lines) for rank in range(2)}


@pytest.mark.slow
def test_a_job_forks_while_slots_are_prepared_and_resumes_exactly(job: FtJob) -> None:
    """Taken out: preparing slots; joining the thread, without which a rank ends inside torch."""
    job.start(
        "--memory-interval", "auto", "--storage-interval", "off", "--backoff-first", "0.1s",
        script=JOBS / "large.py", args=(str(job.out), "24"), env={"FAULT": "1 18"},
    )  # fmt: skip
    assert job.wait() == 0, job.stderr
    assert len(job.fired()) == 1
    assert all(preparing(job, 0).values()), "the loop went on while slots were prepared"
    assert not (job.out / "failed").exists()
    [resumed] = [event for event in job.events("resumed") if event["source"] is not None]
    assert resumed["source"] == "memory"
    assert resumed["step"] > 0
    assert sorted(job.losses()) == list(range(24)), "and every step made twice was made alike"
    job.assert_clean()


@pytest.mark.long
def test_a_job_that_ends_at_once_leaves_nothing_of_what_was_being_prepared(job: FtJob) -> None:
    """Taken out: ending the preparation before the last snapshot."""
    job.start("--memory-interval", "auto", script=JOBS / "large.py", args=(str(job.out), "1"))
    assert job.wait() == 0, job.stderr
    assert all(preparing(job, 0).values())
    job.assert_clean()


@pytest.mark.slow
def test_snapshots_that_are_never_due_have_no_slot_prepared(job: FtJob) -> None:
    job.start("--memory-interval", "0", script=JOBS / "large.py", args=(str(job.out), "4"))
    assert job.wait() == 0, job.stderr
    assert not (job.out / "preparing").exists()
    job.assert_clean()

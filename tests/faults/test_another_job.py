"""Memory and checkpoints of another job, or of this one when it was complete: what is taken up, and what is said."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.proc.test_ctl import ftctl
from tests.support.harness import FtJob
from tests.support.leftovers import carriers
from tests.support.waiting import wait_for

from ftlaunch.memory.directory import memory_dirs

SLOW = ("--steps", "60", "--step-time", "0.03")


@pytest.fixture
def other(job: FtJob, tmp_path: Path) -> Iterator[FtJob]:
    """A job of the same id in the same working directory, with another run dir."""
    other = FtJob(tmp_path)
    other.job_id, other.run_dir, other.out = job.job_id, tmp_path / "run_b", tmp_path / "out_b"
    yield other
    other.dispose()
    for left in memory_dirs(job.job_id):
        shutil.rmtree(left)


@pytest.mark.long
def test_another_run_dir_does_not_go_on_from_a_killed_jobs_memory(job: FtJob, other: FtJob) -> None:
    """Taken out (`_lock` takes every directory): run_b goes on from run's memory."""
    job.start(args=("--out", str(job.out), *SLOW))
    job.wait_step(20)
    job.supervisor.kill()
    job.supervisor.wait()
    wait_for(lambda: not carriers(job.tag), "the end of ranks and saver")
    made = len(job.losses())

    other.start(args=("--out", str(other.out), *SLOW))
    assert f"{job.memory} is the memory of another job (run dir {job.run_dir}, " in wait_for(
        lambda: other.stderr, "what it says"
    )
    # `ftctl` finds each of the two by its run dir
    wait_for(lambda: other.events("attempt_started"), "its ranks")
    assert ftctl("status", other.run_dir, cwd=job.home)[0] == 0
    assert "is not running" in ftctl("status", job.run_dir, cwd=job.home)[1]
    code, _, err = ftctl("report", job.job_id, cwd=Path("/"))
    assert code == 2
    assert f"2 jobs have the id {job.job_id}; name a run dir: " in err
    assert other.wait() == 0, other.stderr
    (resumed,) = other.events("resumed")
    assert (resumed["step"], resumed["source"]) == (0, None)
    assert len(other.losses()) == 60

    job.start(args=("--out", str(job.out), *SLOW))
    assert job.wait() == 0, job.stderr
    resumed = job.events("resumed")[1]
    assert resumed["source"] == "memory"
    assert made - 1 <= resumed["step"] <= made
    assert job.losses() == other.losses()
    assert job.final() == other.final()
    assert memory_dirs(job.job_id) == []


@pytest.mark.slow
def test_a_complete_job_says_so_once_and_how_to_begin_anew(job: FtJob) -> None:
    """Taken out (`_complete_since` returns None): the last line is `done; 0 of 3 restarts used`."""
    steps = ("--out", str(job.out), "--steps", "5")
    job.start(args=steps, ranks=1)
    assert job.wait() == 0, job.stderr
    assert "nothing was left" not in job.stderr
    job.start(args=steps, ranks=1)
    assert job.wait() == 0, job.stderr
    assert job.stderr.count("nothing was left to train: the job is complete at step 5, since 2") == 1
    assert "give --fresh (its checkpoints are put aside) or another --run-dir" in job.stderr.splitlines()[-1]
    assert len(job.losses()) == 5

    job.start(args=("--out", str(job.out), "--steps", "7"), ranks=1)
    assert job.wait() == 0, job.stderr
    assert "nothing was left" not in job.stderr, "there was more to do"
    shutil.rmtree(job.run_dir / "checkpoints")
    job.start(args=steps, ranks=1)
    assert job.wait() == 0, job.stderr
    assert "this job finished before, at 2" in job.stderr
    assert f"there is no checkpoint in {job.run_dir}/checkpoints: it begins anew" in job.stderr
    job.assert_clean()

"""The recipes of configs/slurm, as they stand: what Slurm does to a job without a spare node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.slurm import Slurm, cluster
from tests.support.slurm_jobs import NODES, STEPS, SlurmJob

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def job(slurm: Slurm, tmp_path: Path) -> SlurmJob:
    return SlurmJob(slurm, tmp_path / "job")


def assert_went_on(job: SlurmJob, alone: Any) -> None:
    """The job was stopped once, queued again, and has gone on from the step that was saved."""
    (stopped,) = job.events("job_stopped")
    assert stopped["code"] == 75, job.transcript
    assert job.wait_end(180.0) == ("COMPLETED", "0:0"), job.transcript
    assert [start["step"] for start in job.events("resumed")] == [0, stopped["step"]], job.transcript
    assert job.slurm.job(job.number)["Restarts"] == "1"
    assert job.report()["code"] == 0
    assert job.result() == alone


@pytest.mark.long
def test_srun_and_nothing_else(slurm: Slurm, job: SlurmJob, alone: Any) -> None:
    job.submit("plain.sh")
    assert job.wait_end() == ("COMPLETED", "0:0"), job.transcript
    assert job.result() == alone
    (job.run_dir,) = job.run_dir.parent.iterdir()
    (started,) = job.events("job_started")
    assert started["host"] == slurm.nodes[0].name, job.transcript


@pytest.mark.slow
def test_the_notice_before_the_time_limit_saves_and_queues_the_job_again(
    slurm: Slurm, job: SlurmJob, alone: Any
) -> None:  # fmt: skip
    """The notice comes 13 to 28 s after the start: Slurm looks every 30 s."""
    job.submit("requeue.sh", "--step-time", "0.8", sbatch=("--time=2", "--signal=TERM@105"))
    job.wait_event("job_stopped")
    job.wait_state("PENDING")
    slurm.run("scontrol", "update", f"JobId={job.number}", "TimeLimit=10")  # no second notice
    assert_went_on(job, alone)


@pytest.mark.slow
def test_a_job_of_higher_priority_takes_the_nodes_and_gives_them_back(
    slurm: Slurm, job: SlurmJob, alone: Any
) -> None:  # fmt: skip
    """Preemption with a grace: Slurm sends SIGTERM to the agents and to the batch shell."""
    job.submit("requeue.sh", "--step-time", "0.4")
    job.wait_step(5)
    urgent = ("sbatch", "--parsable", "--partition=urgent", "--nodes=3", "--exclusive", "--wrap", "sleep 3")
    other = slurm.run(*urgent).strip()
    job.wait_event("job_stopped")
    assert_went_on(job, alone)
    assert slurm.job(other)["JobState"] == "COMPLETED", "the other job has had the nodes"


@pytest.mark.slow
def test_a_lost_node_without_a_spare_queues_the_job_again(slurm: Slurm, job: SlurmJob, alone: Any) -> None:
    """Slurm does, half a minute later; the job goes on at least from its checkpoint, on a node that is new to it."""
    job.submit("requeue.sh", "--step-time", "0.4", options=("--storage-interval", "10"))
    job.wait_step(15)
    slurm.nodes[1].lose()
    job.wait_event("resumed", 2)
    assert slurm.nodes_of(job.number) == [slurm.nodes[0].name, slurm.nodes[2].name], job.transcript
    assert job.events("resumed")[-1]["step"] >= 10, job.transcript
    assert job.wait_end() == ("COMPLETED", "0:0"), job.transcript
    assert job.result() == alone


@pytest.mark.slow
def test_a_notice_that_reaches_only_what_srun_has_started_queues_the_job_again(tmp_path: Path, alone: Any) -> None:
    """With proctrack/cgroup Slurm signals no other process of a task.

    Taken out: where the shell of spare.sh does not pass the signal on, the job trains on until it is killed.
    """
    with cluster(NODES, "cgroup") as slurm:
        job = SlurmJob(slurm, tmp_path / "job")
        job.submit("spare.sh", "--step-time", "0.4")
        job.wait_step(5)
        slurm.run("scancel", "--signal=TERM", job.number)
        job.wait_event("job_stopped")
        assert_went_on(job, alone)


@pytest.mark.slow
def test_the_tasks_of_an_array_are_jobs_of_their_own(slurm: Slurm, job: SlurmJob) -> None:
    """Taken out: with one name for all, the second task finds the first's last checkpoint, and trains nothing."""
    job.submit("array.sh", sbatch=("--array=1-2%1",))
    for task in (1, 2):
        job.number = f"{job.number.partition('_')[0]}_{task}"
        assert job.wait_end() == ("COMPLETED", "0:0"), job.transcript
    runs = sorted(job.run_dir.parent.iterdir())
    assert [run.name.rpartition("-")[2] for run in runs] == ["1", "2"], job.transcript
    for job.run_dir in runs:
        (resumed,) = job.events("resumed")
        assert (resumed["step"], job.report()["committed"]) == (0, STEPS), job.transcript

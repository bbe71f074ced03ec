"""Nodes that Slurm loses below a job of two nodes and one that stands by: configs/slurm/spare.sh, as it stands."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from tests.support.slurm import Slurm
from tests.support.slurm_jobs import NODES, SlurmJob

pytestmark = pytest.mark.timeout(240)

PEER_INTERVAL = 2
"""steps; by itself, a job on a busy machine may take so long an interval that there is no copy yet"""


def started(slurm: Slurm, home: Path, step_time: float) -> SlurmJob:
    """A job that has made some steps, with a node that stands by."""
    job = SlurmJob(slurm, home)
    options = ("--nnodes", str(NODES), "--peer-interval", str(PEER_INTERVAL))
    job.submit("spare.sh", "--step-time", str(step_time), options=options)
    job.wait_standby()
    job.wait_step(5)
    return job


@pytest.fixture
def job(slurm: Slurm, tmp_path: Path) -> SlurmJob:
    return started(slurm, tmp_path / "job", 0.4)


def assert_done(job: SlurmJob, alone: Any, *states: str) -> None:
    """states: what Slurm says at the end."""
    state, _ = job.wait_end()
    assert state in states, job.transcript
    assert job.report()["code"] == 0, job.transcript
    assert job.result() == alone


@pytest.mark.slow
def test_a_lost_node_is_replaced_by_the_spare(slurm: Slurm, job: SlurmJob, alone: Any) -> None:
    lost = job.worker(job.wait_standby())
    job.wait_copied()
    lost.lose()
    assert job.wait_event("incident")["kind"] == "node-lost", job.transcript
    slurm.wait_removed(job.number, lost)
    assert_done(job, alone, "COMPLETED")
    (_, resumed) = job.events("resumed")
    assert resumed["source"] == "peer", job.transcript
    assert resumed["steps_lost"] <= 2 * PEER_INTERVAL, "the copies of the newest such step were on their way"


@pytest.mark.slow
def test_the_node_of_the_batch_shell_is_lost_and_the_others_train_on(
    slurm: Slurm, job: SlurmJob, alone: Any
) -> None:  # fmt: skip
    """Taken out: where no agent looks for srun at its end, the job stays RUNNING until its time limit."""
    slurm.nodes[0].lose()
    job.wait_event("job_started", 2)
    assert_done(job, alone, "CANCELLED")  # nobody is left who could tell Slurm that it is done
    assert slurm.job(job.number)["BatchHost"] == slurm.nodes[0].name, "the lost node had the batch shell"


@pytest.mark.slow
def test_a_job_without_its_batch_shell_is_queued_again_on_75(slurm: Slurm, tmp_path: Path, alone: Any) -> None:
    """Only two nodes are left for it: --nodes=2-3 lets it begin without a spare."""
    job = started(slurm, tmp_path / "job", 0.9)  # Slurm takes half a minute to notice
    slurm.nodes[0].lose()
    slurm.wait_removed(job.number, slurm.nodes[0])
    slurm.run("scancel", "--signal=TERM", job.number)
    stopped = job.wait_event("job_stopped")
    assert_done(job, alone, "COMPLETED")
    assert job.events("resumed")[-1]["step"] == stopped["step"], job.transcript


@pytest.mark.slow
def test_a_node_that_is_set_down_is_replaced_by_the_spare(slurm: Slurm, job: SlurmJob, alone: Any) -> None:
    node = job.worker(job.wait_standby())
    slurm.run("scontrol", "update", f"NodeName={node.name}", "State=DOWN", "Reason=test")
    slurm.wait_removed(job.number, node)
    assert job.wait_event("incident")["kind"] == "node-lost", job.transcript
    assert_done(job, alone, "COMPLETED")


@pytest.mark.slow
def test_a_node_without_its_slurmd_trains_on_and_is_replaced_when_it_comes_back(
    slurm: Slurm, job: SlurmJob, alone: Any
) -> None:  # fmt: skip
    """Slurm has taken the node away long before; the new slurmd kills what it finds of the job."""
    node = job.worker(job.wait_standby())
    slurm.kill_slurmd(node)
    slurm.run("scontrol", "update", f"NodeName={node.name}", "State=DOWN", "Reason=test")
    slurm.wait_removed(job.number, node)
    job.wait_step(15)
    assert not job.events("incident"), job.transcript
    slurm.boot(node)
    job.wait_event("incident")
    assert_done(job, alone, "COMPLETED")


@pytest.mark.slow
def test_a_drained_node_ends_with_75_and_the_job_is_done(slurm: Slurm, job: SlurmJob, alone: Any) -> None:
    """Taken out: by srun's exit code, which is 75, the job that is done is queued again."""
    job.signal_agent(job.worker(job.wait_standby()), signal.SIGTERM)
    assert_done(job, alone, "COMPLETED")
    assert "Exited with exit code 75" in job.transcript
    assert not job.events("incident"), job.transcript
    assert slurm.job(job.number)["Restarts"] == "0", job.transcript


@pytest.mark.slow
def test_a_job_that_is_cancelled_saves_and_is_not_queued_again(slurm: Slurm, job: SlurmJob) -> None:
    """Tried: without a look at what Slurm says of the job, the recipe queues it again, and it cannot be cancelled."""
    slurm.run("scancel", job.number)
    job.wait_event("job_stopped")
    assert job.wait_end()[0] == "CANCELLED", job.transcript
    assert job.report()["code"] == 75, job.transcript
    assert job.events("checkpoint_committed")[-1]["why"] == "stop"

"""The guide's recipe for nodes that share no directory: run dirs of their own, a token, and a real bucket."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import buckets
from tests.support.buckets import BucketServer
from tests.support.machines import RANKS, empty
from tests.support.recipes import recipe
from tests.support.slurm import Slurm
from tests.support.slurm_jobs import NODES, STEPS, ApartSlurmJob

pytestmark = [pytest.mark.long, pytest.mark.timeout(240), buckets.needs_server]


@pytest.fixture
def bucket(slurm: Slurm, tmp_path: Path) -> Iterator[BucketServer]:
    with buckets.bucket_server(tmp_path / "bucket", machine=slurm.controller) as server:
        yield server


@pytest.fixture
def job(slurm: Slurm, bucket: BucketServer, tmp_path: Path) -> ApartSlurmJob:
    """A job that has made some steps."""
    job = ApartSlurmJob(slurm, tmp_path / "job")
    examples = {
        "/opt/gpt": str(job.work),
        "--nproc-per-node 8": f"--nproc-per-node {RANKS}",
        "BUCKET/gpt": f"{buckets.BUCKET}/gpt",
        "train.py": f"train.py --out {job.out} --steps {STEPS} --step-time 0.2",
    }
    job.type(recipe("slurm.md", "RUNS=", examples), buckets.environment(bucket.endpoint))
    job.wait_step(5)
    return job


@pytest.mark.slow
def test_a_rank_that_dies_costs_nothing(job: ApartSlurmJob, slurm: Slurm, alone: Any) -> None:
    last = NODES * RANKS - 1
    slurm.nodes[1].signal(job.wait_step(10)[last], signal.SIGKILL)
    assert job.wait_event("incident")["rank"] == last
    assert job.wait_end() == ("COMPLETED", "0:0"), job.transcript
    assert job.result() == alone
    assert job.report()["code"] == 0
    assert "the nodes do not all share the run dir" in job.transcript
    here, there = (node.path(job.run_dir) for node in slurm.nodes[:NODES])
    (here / "only here").touch()
    assert not (there / "only here").exists(), "the guard of the tests here: the nodes share no run dir"
    assert (here / "events.jsonl").read_bytes() == (there / "events.jsonl").read_bytes()


@pytest.mark.slow
def test_a_job_that_is_queued_again_goes_on_from_the_bucket_on_new_nodes(
    job: ApartSlurmJob, slurm: Slurm, alone: Any
) -> None:
    slurm.run("scancel", "--signal=TERM", job.number)
    stopped = job.wait_event("job_stopped")
    job.wait_state("PENDING")
    for node in slurm.nodes:
        empty(node, "/var/tmp", "/dev/shm")
    assert job.wait_end() == ("COMPLETED", "0:0"), job.transcript
    (resumed,) = job.events("resumed")
    assert (resumed["source"], resumed["step"]) == ("storage", stopped["step"]), job.transcript
    assert job.result() == alone


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_without_the_heads_machine_slurm_queues_the_job_again(job: ApartSlurmJob, slurm: Slurm, alone: Any) -> None:
    """The batch shell was there, too. The job gets a node that it has never had, and waits for the store's owner."""
    slurm.nodes[0].lose()
    job.wait_event("job_started", 2, 300.0)  # Slurm takes a minute, and the store 100 s
    assert slurm.nodes_of(job.number) == [slurm.nodes[1].name, slurm.nodes[2].name], job.transcript
    assert job.wait_end() == ("COMPLETED", "0:0"), job.transcript
    assert job.result() == alone

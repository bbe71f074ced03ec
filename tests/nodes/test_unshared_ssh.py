"""The guide's recipe for hosts that share no directory: one command, a real ssh, a real bucket, and nothing else."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import buckets, sshd
from tests.support.buckets import BucketServer
from tests.support.machines import RANKS, Machines, made, undisturbed
from tests.support.recipes import recipe
from tests.support.ssh_machines import NODES, SshMachines
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(240), buckets.needs_server]

STEPS = 60


@pytest.fixture
def machines() -> Iterator[Machines]:
    """Two hosts, and the machine that has the bucket."""
    with made(NODES + 1) as all_of_them:
        yield all_of_them


@pytest.fixture
def bucket(machines: Machines, tmp_path: Path) -> Iterator[BucketServer]:
    with buckets.bucket_server(tmp_path / "bucket", machine=machines[NODES]) as server:
        yield server


@pytest.fixture
def job(machines: Machines, tmp_path: Path) -> SshMachines:
    sshd.skip_without_ssh()
    return SshMachines(machines, tmp_path / "job")


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return undisturbed(tmp_path_factory, nodes=NODES, steps=STEPS)


def begin(job: SshMachines, bucket: BucketServer) -> None:
    """Type the recipe, with the ranks, the bucket and the script of the test."""
    examples = {
        "--nproc-per-node 8": f"--nproc-per-node {RANKS}",
        "BUCKET/PREFIX": f"{buckets.BUCKET}/run",
        "train.py": f"train.py --out {job.out} --steps {STEPS} --step-time 0.1",
    }
    job.type(recipe("several-machines.md", "--hosts node1,node2 ", examples), buckets.environment(bucket.endpoint))


@pytest.mark.slow
def test_a_rank_that_dies_costs_nothing(job: SshMachines, bucket: BucketServer, alone: Any) -> None:
    """Taken out (`credential_prefixes`): the agent of the first host finds no credentials, and ends with 2."""
    begin(job, bucket)
    pids = job.wait_step(10)
    job.nodes[1].signal(pids[NODES * RANKS - 1], signal.SIGKILL)
    assert job.wait_event("incident")["rank"] == NODES * RANKS - 1
    assert job.end() == 0, job.transcript
    assert job.result() == alone
    assert job.events("checkpoint_stored"), job.transcript
    assert "the nodes do not all share the run dir" in (job.home / "terminal").read_text()
    here, there = (machine.path(job.run_dir) for machine in job.nodes)
    assert (here / "events.jsonl").read_bytes() == (there / "events.jsonl").read_bytes()
    (here / "only here").touch()
    assert not (there / "only here").exists(), "the guard of the tests here: the machines share no run dir"


def test_new_machines_go_on_from_the_bucket(job: SshMachines, bucket: BucketServer, alone: Any) -> None:
    begin(job, bucket)
    job.wait_step(10)
    job.command.send_signal(signal.SIGTERM)
    assert job.end() == 75, job.transcript
    (stopped,) = job.events("job_stopped")
    for machine in job.nodes:
        wait_for(lambda machine=machine: len(machine.processes()) == 1, "an end of all but sshd")  # type: ignore[misc]
        job.renew(machine)
    begin(job, bucket)
    assert job.end() == 0, job.transcript
    (resumed,) = job.events("resumed")
    assert (resumed["source"], resumed["step"]) == ("storage", stopped["step"])
    assert job.result() == alone


@pytest.mark.slow
def test_a_machine_that_comes_back_empty_gets_what_it_needs(job: SshMachines, bucket: BucketServer, alone: Any) -> None:
    begin(job, bucket)
    job.wait_step(10)
    job.nodes[1].lose()
    assert job.wait_event("incident")["kind"] == "node-lost"
    job.renew(job.nodes[1])
    job.nodes[1].mend()
    job.boot(job.nodes[1])
    assert job.end() == 0, job.transcript
    assert len(job.events("attempt_started")) == 2, job.transcript
    assert job.result() == alone

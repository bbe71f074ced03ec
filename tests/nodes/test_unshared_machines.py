"""Machines that share nothing: each has a network, a host name, a /dev/shm and a disk of its own.

A folder stands for the bucket. The disks are file systems of each machine's own mount namespace, so that no machine
sees the run dir of another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.machines import Cluster, Machines, made, undisturbed
from tests.support.waiting import wait_for

from ftlaunch.nodes.channel.claims import Sign

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # four to six ranks each: `make sweep` runs them

NODES = 2
STEPS = 120
ARGS = ("--steps", str(STEPS), "--step-time", "0.05")
ENV = {"FTLAUNCH_TOKEN": "a token that is long enough"}


@pytest.fixture
def machines() -> Iterator[Machines]:
    """Three: two for the job, and one that stands by."""
    with made(NODES + 1) as all_of_them:
        yield all_of_them


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return undisturbed(tmp_path_factory, nodes=NODES, steps=STEPS)


def prepared(machines: Machines, home: Path) -> Cluster:
    """A job on machines with disks of their own, of which no agent has started."""
    bucket = home / "bucket"
    job = Cluster(machines, home, NODES, ("--checkpoint-dir", f"file://{bucket}", "--storage-interval", "20"), *ARGS)
    bucket.mkdir()
    job.own_disks()
    return job


def started(machines: Machines, home: Path, step: int) -> Cluster:
    """A job on machines with disks of their own whose ranks have made so many steps."""
    job = prepared(machines, home)
    job.start_all(ENV)
    job.wait_step(step)
    return job


def assert_ended_well(job: Cluster, alone: Any, *numbers: int) -> None:
    assert set(job.wait(*numbers)) == {0}, job.transcript()
    assert job.result() == alone


def test_no_machine_sees_the_run_dir_of_another(machines: Machines, tmp_path: Path, alone: Any) -> None:
    """The guard of the other tests here: what the machines share they do not share by mistake."""
    job = started(machines, tmp_path / "job", 1)
    (machines[0].path(job.run_dir) / "only here").touch()
    assert not (machines[1].path(job.run_dir) / "only here").exists()
    assert "the nodes do not all share the run dir" in job.said(0)
    assert_ended_well(job, alone)
    journals = [(machine.path(job.run_dir) / "events.jsonl").read_bytes() for machine in machines.all]
    assert journals[0] == journals[1] == journals[2]


def test_a_lost_machine_is_replaced_by_one_that_has_nothing(machines: Machines, tmp_path: Path, alone: Any) -> None:
    job = started(machines, tmp_path / "job", 30)
    job.wait_event("checkpoint_stored")
    machines[1].lose()
    assert job.wait_event("incident")["kind"] == "node-lost"
    job.wait_event("attempt_started", 2)
    assert_ended_well(job, alone, 0, 2)


def test_a_machine_that_was_cut_off_comes_back(machines: Machines, tmp_path: Path, alone: Any) -> None:
    job = started(machines, tmp_path / "job", 30)
    machines[1].cut()
    job.wait_event("attempt_started", 2)
    machines[1].mend()
    assert_ended_well(job, alone)


def test_of_two_machines_the_other_ends_without_the_heads_and_the_same_command_goes_on(
    machines: Machines, tmp_path: Path, alone: Any
) -> None:
    """It starts no head: it could not know whether the first one trains on."""
    job = prepared(machines, tmp_path / "job")
    for number in range(NODES):
        job.start(number, "--node-rank", str(number), env=ENV)
    job.wait_step(30)
    job.wait_event("checkpoint_stored")
    machines[0].lose()
    assert job.wait(1, seconds=90.0) == [75], job.transcript()
    assert "the head at 10.77.0.1:29400 is gone" in job.said(1)
    claims = machines[1].path(job.run_dir) / "head"
    assert not list(claims.glob("claim.*"))
    machines[0].mend()
    for number in range(NODES):
        job.start(number, "--node-rank", str(number), env=ENV)
    wait_for(lambda: len(job.events("job_started")) == 2, "the second life of the job")
    assert_ended_well(job, alone, 0, 1)


def test_a_machine_that_was_the_heads_last_week_waits_for_the_head(
    machines: Machines, tmp_path: Path, alone: Any
) -> None:
    """Taken out (`is_marked`): it takes its own old sign for that of the head, and starts a head beside the job's."""
    job = prepared(machines, tmp_path / "job")
    left = machines[1].path(job.run_dir) / "head"
    left.mkdir(parents=True)
    (left / "unshared").touch()
    (left / "sign.json").write_text(json.dumps(vars(Sign(9, "10.77.0.2", 29400, "last week's", 1, 1, 5))))
    job.start(1, "--node-rank", "1", env=ENV)
    wait_for(lambda: "this node tries again and again" in job.said(1), "ten seconds without a head", 30.0)
    job.start(0, "--node-rank", "0", env=ENV)
    assert_ended_well(job, alone, 0, 1)
    assert not list(left.glob("claim.*")), "no head has claimed anything there"

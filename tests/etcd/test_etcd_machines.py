"""Jobs on machines of their own, each of which has a member of etcd: a machine that is lost takes that along, too."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.etcd import ETCD, NO_ETCD, member_command
from tests.support.machines import Cluster, Machines, made, undisturbed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(ETCD is None, reason=NO_ETCD),
]

NODES, STEPS = 2, 120
ARGS = ("--steps", str(STEPS), "--step-time", "0.05")


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    """Two for the job, and one that may stand by."""
    with made(NODES + 1) as all_of_them:
        clients = [f"http://{machine.address}:2379" for machine in all_of_them.all]
        peers = [f"http://{machine.address}:2380" for machine in all_of_them.all]
        for number, machine in enumerate(all_of_them.all):
            with (tmp_path / f"etcd{number}").open("wb") as log:
                command = member_command(number, tmp_path, clients, peers)
                machine.start(command, tmp_path, dict(os.environ), stdout=log, stderr=log)
        yield all_of_them


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return undisturbed(tmp_path_factory, nodes=NODES, steps=STEPS)


def started(machines: Machines, home: Path, step: int, *, apart: bool = False) -> Cluster:
    """A job whose ranks have made so many steps. apart: each machine has its own disk, and a folder is the bucket."""
    members = ",".join(machine.address for machine in machines.all)
    options = ("--rdzv-backend", "etcd", "--rdzv-endpoint", members, "--storage-interval", "10")
    bucket = home / "bucket"
    store = ("--checkpoint-dir", f"file://{bucket}") if apart else ()
    job = Cluster(machines, home, NODES, (*options, *store), *ARGS)
    if apart:
        bucket.mkdir()
        job.own_disks()
    job.start_all({"FTLAUNCH_TOKEN": "a token that is long enough"} if apart else None)
    job.wait_step(step)
    return job


def is_etcd(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() == "etcd"


def head_at(job: Cluster) -> int:
    """Number of the machine that has the head, which speaks there."""
    (found,) = [number for number in job.agents if f"job {job.name} has {NODES} nodes" in job.said(number)]
    return found


def others(job: Cluster, number: int) -> list[int]:
    return [other for other in job.agents if other != number]


def test_the_heads_machine_is_lost_with_its_member_of_etcd(machines: Machines, tmp_path: Path, alone: Any) -> None:
    """Taken out (the sign of life is asked of one member): where no agent takes the head's place, all end with 75."""
    job = started(machines, tmp_path / "job", 15)
    lost = head_at(job)
    machines[lost].lose()
    rest = others(job, lost)
    assert set(job.wait(*rest)) == {0}, job.transcript()
    assert len(job.events("job_started")) == 2, "the fault came too late"
    assert job.result() == alone


def test_machines_that_share_nothing_go_on_without_that_of_the_head(
    machines: Machines, tmp_path: Path, alone: Any
) -> None:  # fmt: skip
    """The next head has the copies that its own machine was sent: the journal goes on, and restarts stay spent."""
    job = started(machines, tmp_path / "job", 30, apart=True)
    job.wait_event("checkpoint_stored")
    lost = head_at(job)
    machines[lost].lose()
    rest = others(job, lost)
    assert set(job.wait(*rest)) == {0}, job.transcript()
    assert len(job.events("job_started")) == 2, "the fault came too late"
    assert {event["source"] for event in job.events("resumed")[1:]} <= {"storage", "peer", "memory"}
    assert job.result() == alone


def test_the_heads_machine_is_cut_off_with_its_member_of_etcd(machines: Machines, tmp_path: Path, alone: Any) -> None:
    """Its member of etcd hears no other one and answers nobody, so the head's claim is soon not the newest."""
    job = started(machines, tmp_path / "job", 15)
    lost = head_at(job)
    machines[lost].cut()
    rest = others(job, lost)
    job.wait_event("job_started", 2)
    machines[lost].mend()
    assert set(job.wait(*rest)) == {0}, job.transcript()
    assert "another head has taken over the job" in job.said(lost), job.transcript()
    assert job.result() == alone


def test_all_machines_begin_anew_after_all_were_lost(machines: Machines, tmp_path: Path, alone: Any) -> None:
    """A head that is gone has left its sign: whoever comes first waits until that counts on no more."""
    job = started(machines, tmp_path / "job", 15)
    before = head_at(job)
    for machine in machines.all:
        for pid in [pid for pid, host in machine.processes().items() if not is_etcd(host)]:
            with contextlib.suppress(ProcessLookupError, KeyError):  # it has ended with its agent
                machine.signal(pid, signal.SIGKILL)
    rest = others(job, before)  # the head's own machine would know at once that it is gone
    for number in rest:
        job.start(number)
    assert set(job.wait(*rest)) == {0}, job.transcript()
    assert len(job.events("job_started")) == 2, job.transcript()
    assert job.result() == alone

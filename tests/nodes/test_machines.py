"""Jobs on machines that have a network, a host name, processes and a /dev/shm of their own; links that are cut.

Each test names the protection that fails it when it is taken out.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.machines import RANKS, Cluster, Machines, made, undisturbed
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # six to eight ranks each: `make sweep` runs them

NODES, STEPS, STEP_TIME = 3, 120, 0.05
ARGS = ("--steps", str(STEPS), "--step-time", str(STEP_TIME))
NODE_TIMEOUT = 2.0  # seconds: the default
needs_nft = pytest.mark.skipif(shutil.which("nft") is None, reason="nft is not installed (Debian: nftables)")


@pytest.fixture
def machines() -> Iterator[Machines]:
    """Four: three for the job, and one that may stand by."""
    with made(NODES + 1) as all_of_them:
        yield all_of_them


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return undisturbed(tmp_path_factory, nodes=NODES, steps=STEPS)


def started(machines: Machines, home: Path, step: int, *options: str, env: dict[str, str] | None = None) -> Cluster:
    """A job on all machines whose ranks have made so many steps; on a busy machine its standby may not have joined."""
    job = Cluster(machines, home, NODES, options, *ARGS)
    job.start_all(env)
    job.wait_step(step)
    return job


def assert_ended_well(job: Cluster, alone: Any, *machines: int) -> None:
    assert set(job.wait(*machines)) == {0}, job.transcript()
    losses, final = job.result()
    assert (losses, final) == alone


def test_three_machines_train_what_one_does(machines: Machines, tmp_path: Path, alone: Any) -> None:
    job = started(machines, tmp_path / "job", 1)
    assert_ended_well(job, alone)
    assert job.events("incident") == []
    assert [job.held(machine) for machine in machines.all] == [[]] * len(machines)


def test_a_lost_machine_is_replaced_from_the_newest_checkpoint(
    machines: Machines, tmp_path: Path, alone: Any
) -> None:  # fmt: skip
    """Without a node timeout nobody would notice: the lost machine sends no FIN."""
    job = started(machines, tmp_path / "job", 30, "--storage-interval", "20", "--peer-interval", "0")
    job.wait_event("checkpoint_committed")
    machines[2].lose()
    assert job.wait_event("incident")["kind"] == "node-lost"
    job.wait_event("attempt_started", 2)
    assert_ended_well(job, alone, 0, 1, 3)
    resumed = job.events("resumed")[-1]
    assert resumed["source"] == "storage" and resumed["step"] > 0, resumed


def test_a_link_that_is_down_for_less_than_the_timeout(machines: Machines, tmp_path: Path, alone: Any) -> None:
    job = started(machines, tmp_path / "job", 30, "--storage-interval", "20")
    machines[1].cut()
    pause(0.8)
    machines[1].mend()
    assert_ended_well(job, alone)
    assert len(job.events("attempt_started")) <= 2, job.transcript()


def test_a_node_may_be_silent_as_long_as_was_asked_for(machines: Machines, tmp_path: Path, alone: Any) -> None:
    """Taken out: the kernel ends the connection after two seconds, whatever the node timeout, and the job restarts."""
    job = started(machines, tmp_path / "job", 30, "--storage-interval", "20", "--node-timeout", "10s")
    machines[1].cut()
    pause(2.5 * NODE_TIMEOUT)
    machines[1].mend()
    assert_ended_well(job, alone)
    assert len(job.events("attempt_started")) == 1, job.transcript()


def test_a_cut_machine_ends_its_ranks_before_others_begin(machines: Machines, tmp_path: Path, alone: Any) -> None:
    """The fence: without it the standby's ranks begin while those of the cut machine are at work."""
    job = started(machines, tmp_path / "job", 30, "--storage-interval", "20")
    mine = [pid for rank, pid in job.wait_step(30).items() if rank // RANKS == 2]
    cut = clock()
    machines[2].cut()
    wait_for(lambda: not machines[2].processes().keys() & set(mine), "the end of the cut machine's ranks")
    ended = clock()
    begun = job.wait_event("attempt_started", 2)
    assert ended < begun["mono"], f"ended after {ended - cut:.2f} s, others began after {begun['mono'] - cut:.2f} s"
    wait_for(lambda: clock() > cut + 10.0, "ten seconds")
    machines[2].mend()
    assert_ended_well(job, alone)  # all four: it has come back, and stood by


@needs_nft
def test_a_machine_that_hears_and_is_not_heard(machines: Machines, tmp_path: Path, alone: Any) -> None:
    job = started(machines, tmp_path / "job", 30, "--storage-interval", "20")
    mine = [pid for rank, pid in job.wait_step(30).items() if rank // RANKS == 2]
    machines[2].mute()
    wait_for(lambda: not machines[2].processes().keys() & set(mine), "the end of the mute machine's ranks")
    ended = clock()
    assert ended < job.wait_event("attempt_started", 2)["mono"]
    assert_ended_well(job, alone, 0, 1, 3)


@needs_nft
def test_a_job_outlives_loss_of_packets(machines: Machines, tmp_path: Path, alone: Any) -> None:
    job = started(machines, tmp_path / "job", 10, "--storage-interval", "20")
    for machine in machines.all:
        machine.lossy(5)
    assert_ended_well(job, alone)


def test_a_frozen_machine_is_replaced(machines: Machines, tmp_path: Path, alone: Any) -> None:
    """Its kernel answers: only the missing beats tell. Thawed it must not go on where others have taken its place."""
    job = started(machines, tmp_path / "job", 30, "--storage-interval", "20")
    machines[2].freeze()
    job.wait_event("recovered")
    machines[2].thaw()
    assert_ended_well(job, alone, 0, 1, 3)


def test_the_heads_machine_is_lost_and_another_one_leads(machines: Machines, tmp_path: Path, alone: Any) -> None:
    """Taken out: where no agent takes the head's place, all end with 75."""
    job = started(machines, tmp_path / "job", 30, "--storage-interval", "20")
    job.wait_event("checkpoint_committed")
    machines[0].lose()
    job.wait_event("attempt_started", 2)
    assert_ended_well(job, alone, 1, 2, 3)
    resumed = job.events("resumed")[-1]
    assert resumed["source"] in ("peer", "storage") and resumed["step"] > 0, resumed
    assert resumed["steps_lost"] is not None, resumed


def test_the_heads_machine_is_cut_off_and_another_one_leads(machines: Machines, tmp_path: Path, alone: Any) -> None:
    """The storage still sees the cut head: taken out, where it does not give way, nobody takes its place."""
    job = started(machines, tmp_path / "job", 30, "--storage-interval", "20")
    job.wait_event("checkpoint_committed")
    machines[0].cut()
    job.wait_event("attempt_started", 2)
    machines[0].mend()
    assert_ended_well(job, alone)


def test_the_heads_machine_freezes_and_does_no_harm_when_it_goes_on(
    machines: Machines, tmp_path: Path, alone: Any
) -> None:  # fmt: skip
    """Thawed, the deposed head must neither commit nor have ranks run."""
    job = started(machines, tmp_path / "job", 30, "--storage-interval", "20")
    machines[0].freeze()
    job.wait_event("attempt_started", 2)
    machines[0].thaw()
    assert_ended_well(job, alone)
    assert "another head has taken over the job" in job.said(0), job.transcript()
    wait_for(lambda: job.held(machines[0]) == [], "the end of what the deposed head had in memory")


def clock() -> float:
    """That of the journals: all machines have one kernel."""
    return time.monotonic()


def pause(seconds: float) -> None:
    until = clock() + seconds
    wait_for(lambda: clock() > until, "the pause", 2 * seconds)

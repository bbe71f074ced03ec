"""Three machines that share nothing elect the head: which of them may be lost, and how they come back.

Each has a network, a host name, a /dev/shm and a disk of its own; a folder stands for the bucket.
"""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.machines import Cluster, Machines, made, undisturbed
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # six ranks: `make sweep` runs them

NODES = 3
STEPS = 150
ARGS = ("--steps", str(STEPS), "--step-time", "0.05")
ENV = {"FTLAUNCH_TOKEN": "a token that is long enough"}
ELECTED = "3 nodes elect the head: 2 of them go on if its machine is lost"


@pytest.fixture
def machines() -> Iterator[Machines]:
    """Those of the job."""
    with made(NODES) as all_of_them:
        yield all_of_them


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return undisturbed(tmp_path_factory, nodes=NODES, steps=STEPS)


@pytest.fixture
def job(machines: Machines, tmp_path: Path) -> Cluster:
    """A job whose nodes elect the head, and that has stored a checkpoint."""
    return begin(machines, tmp_path / "job")


def begin(machines: Machines, home: Path) -> Cluster:
    """Start the job on the first machines, and wait until it has stored a checkpoint."""
    made_job = Cluster(
        machines, home, NODES, ("--checkpoint-dir", f"file://{home / 'bucket'}", "--storage-interval", "20"), *ARGS
    )
    (home / "bucket").mkdir()
    made_job.own_disks()
    for number in range(NODES):
        start_again(made_job, number)
    made_job.wait_step(30)
    made_job.wait_event("checkpoint_stored")
    wait_for(lambda: ELECTED in made_job.said(0), "the election of voters")
    return made_job


def moved(job: Cluster, *numbers: int) -> None:
    """Wait until some machines have met a head on one of them."""
    heads = "|".join(re.escape(job.machines[number].address) for number in numbers)
    met = re.compile(rf"joined: the head at ({heads}):\d+ speaks for the job")
    wait_for(lambda: all(met.search(job.said(number)) for number in numbers), "a head elsewhere", 60.0)


def start_again(job: Cluster, number: int) -> None:
    """Give the same command on a machine again."""
    job.start(number, "--node-rank", str(number), env=ENV)


@pytest.mark.parametrize("disk", ["kept", "empty"])
def test_two_elect_a_head_and_the_third_machine_comes_back(
    job: Cluster, machines: Machines, alone: Any, disk: str
) -> None:
    """Taken out: without the look for a head at the endpoint an empty machine waits there beside the job."""
    machines[0].lose()
    moved(job, 1, 2)
    if disk == "empty":
        shutil.rmtree(machines[0].path(job.run_dir) / "head")
        (machines[0].path(job.run_dir) / "events.jsonl").unlink()
    machines[0].mend()
    start_again(job, 0)
    assert set(job.wait()) == {0}, job.transcript()
    assert job.result() == alone


def test_a_head_whose_network_is_cut_gives_way_and_its_machine_takes_part_again(
    job: Cluster, machines: Machines, alone: Any
) -> None:
    """It may see in the store that another head has taken over, or by the votes once the network is back."""
    machines[0].cut()
    moved(job, 1, 2)
    machines[0].mend()
    assert set(job.wait()) == {0}, job.transcript()
    assert job.result() == alone
    assert "has taken over" in job.said(0) or "have elected a head at" in job.said(0)


def test_a_killed_head_is_replaced_while_all_machines_live(job: Cluster, machines: Machines, alone: Any) -> None:
    pid = next(
        int(found)
        for found in re.findall(r'"pid": (\d+)', (machines[0].path(job.run_dir) / "events.jsonl").read_text())
    )
    machines[0].signal(pid, signal.SIGKILL)
    wait_for(lambda: "another one has taken its place" in job.transcript(), "another head", 60.0)
    assert set(job.wait()) == {0}, job.transcript()
    assert job.result() == alone


def test_one_of_three_elects_nobody_and_the_same_command_goes_on(job: Cluster, machines: Machines, alone: Any) -> None:
    """Taken out (`have_majority`): the one that is left becomes the head, as the two others might."""
    machines[0].lose()
    machines[1].lose()
    assert job.wait(2, seconds=90.0) == [75], job.transcript()
    assert "the same command goes on from there" in job.said(2)
    for number in (0, 1):
        machines[number].mend()
    for number in range(NODES):
        start_again(job, number)
    assert set(job.wait()) == {0}, job.transcript()
    assert job.result() == alone


def test_a_new_machine_finds_the_elected_head_though_that_of_the_endpoint_never_comes_back(
    tmp_path: Path, alone: Any
) -> None:
    """Taken out (the look into the store): it waits at the endpoint until `--node-wait` is over."""
    with made(NODES + 1) as machines:
        job = begin(machines, tmp_path / "job")
        machines[0].lose()
        moved(job, 1, 2)
        job.start(NODES, env=ENV)
        wait_for(lambda: "joined: the head at" in job.said(NODES), "the elected head", 60.0)
        assert job.wait(1, 2, NODES, seconds=120.0) == [0, 0, 0], job.transcript()
        assert job.result() == alone

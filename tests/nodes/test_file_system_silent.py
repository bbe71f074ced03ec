"""The shared run dir of three machines stands still in mid-job: no node is lost over it, and no rank ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import fuse
from tests.support.fuse import SlowDisk
from tests.support.machines import Cluster, Machines, made, undisturbed
from tests.support.waiting import wait_for

from ftlaunch.system.control_socket import SOCKET, ask

pytestmark = pytest.mark.skipif(bool(fuse.why_not()), reason=fuse.why_not())

NODES = 3


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SlowDisk]:
    with fuse.mounted(tmp_path) as disk:
        yield disk


@pytest.fixture
def machines(disk: SlowDisk) -> Iterator[Machines]:
    """They see what was mounted before."""
    with made(NODES) as all_of_them:
        yield all_of_them


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seconds", [pytest.param(5, marks=pytest.mark.slow), pytest.param(30, marks=pytest.mark.slow)])
def test_the_ranks_of_three_machines_go_on(
    machines: Machines, disk: SlowDisk, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, seconds: int
) -> None:  # fmt: skip
    """A lease is over after three seconds. Taken out (the head's journal is written in its loop): all ranks end."""
    home = tmp_path / "job"
    home.mkdir()
    (disk.place / "run").mkdir()
    (home / "run").symlink_to(disk.place / "run")
    steps = 100 + 12 * seconds  # ten steps a second at most: some are left to make after the silence
    places = ("--log-dir", str(home / "logs"), "--checkpoint-dir", str(home / "ck"))
    job = Cluster(machines, home, NODES, places, "--steps", str(steps), "--step-time", "0.1")
    job.start_all()
    job.wait_step(20)
    control = machines[0].path(Path(job.events("job_started")[0]["memory_dir"]) / SOCKET)

    def steps_made() -> int:
        return min(one["step"] for one in ask(control, {"do": "status"})["ranks"])

    with disk.silent():
        ask(control, {"do": "save"})  # its event is to be written
        before, until = steps_made(), time.monotonic() + seconds
        wait_for(lambda: steps_made() > before and time.monotonic() > until, "steps, and seconds of silence")
    assert set(job.wait()) == {0}, job.transcript()
    assert [job.events(name) for name in ("incident", "node_lost")] == [[], []]
    assert job.events("files_silent"), "nothing had to wait"
    assert len(job.events("files_answer")) == 1
    assert job.result() == undisturbed(tmp_path_factory, nodes=NODES, steps=steps)

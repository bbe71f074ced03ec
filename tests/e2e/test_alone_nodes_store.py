"""Nodes under torchrun that share nothing: their checkpoints go to a store, and empty machines go on from there."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.e2e.test_alone_nodes import NODES, RANKS, SLOW, STEPS, AloneNodes
from tests.e2e.test_checkpoint_store import damage_all
from tests.support.leftovers import carriers
from tests.support.waiting import wait_for

from ftlaunch.checkpoints.stores import index
from ftlaunch.checkpoints.stores.index import Index
from ftlaunch.checkpoints.stores.store import open_store

pytestmark = pytest.mark.long
KEEPER = b"ftlaunch.checkpoints.stores.keeper"


class StoredAloneNodes(AloneNodes):
    """Two nodes with a disk of their own each, and a folder that stands for a bucket."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.address = f"file://{home}/bucket"
        self.disks = [home / f"machine_{node}" for node in range(NODES)]

    def places(self, node: int, below: str) -> dict[str, str]:
        return {"FTLAUNCH_CHECKPOINT_DIR": self.address, "FTLAUNCH_RUN_DIR": str(self.disks[node] / below)}

    def begin(self, *args: str, restarts: int = 0, **env: str) -> None:
        given = {"FTLAUNCH_STORAGE_INTERVAL": "5", "FTLAUNCH_VERIFY_RESUME": "off", "FTLAUNCH_JOB_ID": "net", **env}
        self.start(*args, restarts=restarts, **given)

    @property
    def index(self) -> Index:
        return index.parse((self.home / "bucket" / index.NAME).read_bytes())

    def has_stored(self) -> bool:
        return (self.home / "bucket" / index.NAME).exists() and bool(self.index.steps)

    def keepers(self) -> list[int]:
        found = []
        for pid in carriers(self.tag):
            with suppress(OSError):
                if KEEPER in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    found.append(pid)
        return found

    def kill_all(self) -> None:
        """Kill every process; the disks stay."""
        while pids := carriers(self.tag):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.wait()

    def lose_all(self) -> None:
        """Both machines are gone: every process, and the disks."""
        self.kill_all()
        for disk in self.disks:
            shutil.rmtree(disk, ignore_errors=True)

    def forget_losses(self) -> None:
        shutil.rmtree(self.out)
        self.out.mkdir()

    def assert_went_on(self, calm: AloneNodes, *, at: int) -> None:
        """The job has gone on from a step, and ended as an undisturbed one."""
        assert self.wait() == [0, 0], self.said()
        for rank in range(NODES * RANKS):
            assert self.losses(rank) == calm.losses(rank)[at:]
        assert self.finals() == calm.finals()
        assert max(self.index.steps) == STEPS
        assert set(open_store(self.address).names(index.OBJECTS)) == self.index.objects, "nothing else is left"
        for disk in self.disks:
            assert not list(disk.rglob(".part-*")), "what was uploaded is not left on the disk"
        self.assert_clean()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[StoredAloneNodes]:
    job = StoredAloneNodes(tmp_path)
    yield job
    for pid in carriers(job.tag):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> AloneNodes:
    """A job run without a fault to its end."""
    job = AloneNodes(tmp_path_factory.mktemp("calm"))
    job.start("--steps", str(STEPS))
    assert job.wait() == [0, 0], job.said()
    job.assert_clean()
    return job


@pytest.mark.slow
def test_what_a_stop_saved_is_in_the_store_and_empty_machines_go_on(nodes: StoredAloneNodes, calm: AloneNodes) -> None:
    nodes.begin(*SLOW, FTLAUNCH_STORAGE_INTERVAL="off")
    nodes.wait_loss(7)
    (pid,) = set(carriers(nodes.tag)) & set(carriers("RANK=2")) - set(nodes.keepers())  # of the second node
    os.kill(pid, signal.SIGTERM)
    nodes.wait()
    (step,) = nodes.index.steps
    for disk in nodes.disks:
        shutil.rmtree(disk)
    nodes.forget_losses()
    nodes.begin("--steps", str(STEPS))
    nodes.assert_went_on(calm, at=step)


@pytest.mark.parametrize(
    "is_shared", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["a disk each", "a shared disk"]
)
def test_machines_that_are_lost_with_all_they_had(
    nodes: StoredAloneNodes, calm: AloneNodes, *, is_shared: bool
) -> None:
    if is_shared:
        nodes.disks = [nodes.home / "shared"] * NODES
    nodes.begin(*SLOW)
    wait_for(nodes.has_stored, "a step in the store")
    nodes.lose_all()
    at = max(nodes.index.steps)
    nodes.forget_losses()
    nodes.begin("--steps", str(STEPS), FTLAUNCH_TAKE_OVER_STORE="1")  # the lost keeper has not said that it left
    nodes.assert_went_on(calm, at=at)
    assert f"brought step {at} from {nodes.address}" in nodes.said()


@pytest.mark.slow
def test_a_killed_rank_goes_on_from_memory(nodes: StoredAloneNodes, calm: AloneNodes) -> None:
    nodes.begin(*SLOW, restarts=3, FAULT="sigkill 2 12")
    assert nodes.wait() == [0, 0], nodes.said()
    assert (nodes.out / "fired").read_text() == "sigkill 2 0\n"
    assert "all nodes hold step 12 in memory" in nodes.said()
    for rank in range(NODES * RANKS):
        assert nodes.losses(rank) == calm.losses(rank), "no step was made twice, and none differs"
    assert nodes.finals() == calm.finals()
    assert max(nodes.index.steps) == STEPS
    nodes.assert_clean()


@pytest.mark.slow
def test_keepers_that_are_killed_have_others(nodes: StoredAloneNodes, calm: AloneNodes) -> None:
    nodes.begin(*SLOW)
    wait_for(nodes.has_stored, "a step in the store")
    killed = nodes.keepers()
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert len(killed) == NODES
    nodes.assert_went_on(calm, at=0)
    assert "cannot save" not in nodes.said()


@pytest.mark.slow
def test_a_step_that_only_the_first_node_still_has_whole_is_given_up_on_all(
    nodes: StoredAloneNodes, calm: AloneNodes
) -> None:
    """Taken out (`_check_damaged`): the job cannot begin, although the store has an older step."""
    nodes.begin(*SLOW)
    wait_for(lambda: nodes.has_stored() and len(nodes.index.steps) > 1, "two steps in the store")
    nodes.lose_all()
    older, newest = sorted(nodes.index.steps)
    nodes.forget_losses()
    nodes.begin(*SLOW, FTLAUNCH_TAKE_OVER_STORE="1", FTLAUNCH_STORAGE_INTERVAL="off")  # brings the step to both disks
    nodes.wait_loss(1)
    nodes.kill_all()
    shutil.rmtree(nodes.disks[1])
    assert damage_all(nodes.home / "bucket", f"*{newest:07d}-*/*.safetensors")
    nodes.forget_losses()
    nodes.begin("--steps", str(STEPS), FTLAUNCH_TAKE_OVER_STORE="1")
    nodes.assert_went_on(calm, at=older)
    assert f"step {newest} in {nodes.address} is refused" in nodes.said()


@pytest.mark.slow
def test_empty_machines_whose_store_is_damaged_refuse_to_begin_anew(nodes: StoredAloneNodes) -> None:
    nodes.begin(*SLOW)
    wait_for(nodes.has_stored, "a step in the store")
    nodes.lose_all()
    assert damage_all(nodes.home / "bucket")
    nodes.forget_losses()
    nodes.begin("--steps", str(STEPS), FTLAUNCH_TAKE_OVER_STORE="1")
    assert nodes.wait() == [1, 1], nodes.said()
    assert f"cannot resume: all checkpoints in {nodes.address} are damaged" in nodes.said()
    assert not nodes.losses()
    wait_for(lambda: not carriers(nodes.tag), "the end of all processes")


@pytest.mark.slow
def test_nodes_with_different_stores_are_refused(nodes: StoredAloneNodes) -> None:
    nodes.places = lambda node, below: {  # type: ignore[method-assign]
        "FTLAUNCH_CHECKPOINT_DIR": f"{nodes.address}{node}",
        "FTLAUNCH_RUN_DIR": str(nodes.disks[node]),
    }
    nodes.begin("--steps", str(STEPS))
    assert nodes.wait() == [1, 1], nodes.said()
    assert "its checkpoint store must be the same on all nodes" in nodes.said()
    assert not nodes.losses()
    wait_for(lambda: not carriers(nodes.tag), "the end of all processes")

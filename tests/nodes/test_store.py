"""Nodes that share no directory, and a checkpoint store: whatever machines are lost, the job goes on from the store.

Each agent has a run dir of its own, and below it a checkpoint cache of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.e2e.test_checkpoint_store import damage_all
from tests.support.agents import NodesJob
from tests.support.harness import FtJob
from tests.support.leftovers import carriers
from tests.support.waiting import wait_for

from ftlaunch.checkpoints.stores import index
from ftlaunch.checkpoints.stores.index import Index
from ftlaunch.checkpoints.stores.node_checkpoints import HeadCheckpoints
from ftlaunch.checkpoints.stores.store import open_store
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.protocol import memory_root

pytestmark = pytest.mark.long
TOKEN = "a token that is long enough"
KEEPER = "ftlaunch.checkpoints.stores.keeper"
SLOW = ("--steps", "30", "--step-time", "0.4")


class StoreJob(NodesJob):
    """A job of two nodes with directories of their own, and a store. A machine that is lost takes all with it."""

    def __init__(self, home: Path) -> None:
        """Prepare the job without starting agents."""
        super().__init__(home)
        self.bucket = home / "bucket"
        self.address = f"file://{self.bucket}"
        self.env["FTLAUNCH_TOKEN"] = TOKEN
        self.options = (*self.options, "--storage-interval", "5", "--peer-interval", "0")
        # Machines are lost with their keepers, which then have not said that they leave: no start waits for that.
        self.store = ("--checkpoint-dir", self.address, "--take-over-store")
        self.machines: list[Path] = []
        """the run dir of each machine, by the number of its agent"""
        self.is_shared = False
        """whether all machines share one run dir"""

    def machine(self, rank: int) -> None:
        """Start the agent of a node on a machine that has nothing of the job yet."""
        number = len(self.machines)
        run_dir = self.home / ("shared" if self.is_shared else f"machine_{number}")
        self.machines.append(run_dir)
        self.agent("--node-rank", str(rank), "--run-dir", str(run_dir), *self.store)

    def begin(self, *more: str) -> list[object]:  # type: ignore[override]
        """Start the agent of the first node, wait for its head, and start the other's."""
        self.run_dir = self.home / ("shared" if self.is_shared else f"machine_{len(self.machines)}")
        starts = len(self.events("job_started"))
        self.machine(0)
        self.wait_event("job_started", starts + 1)
        self.machine(1)
        return []

    def kill_all(self) -> None:
        """Kill every process of the job; memory and disks stay."""
        while pids := carriers(self.tag):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for agent in self.supervisors:
                agent.wait()

    def begin_again(self) -> None:
        """Start the same commands on the same machines."""
        self.machines.clear()
        self.begin()

    def lose_all(self) -> None:
        """All machines are gone: every process, their memory, their disks."""
        self.kill_all()
        for name in self.memories():
            shutil.rmtree(memory_root(os.getuid()) / (self.job_id + name))
        for run_dir in self.machines:
            shutil.rmtree(run_dir, ignore_errors=True)

    @property
    def index(self) -> Index:
        return index.parse((self.bucket / index.NAME).read_bytes())

    def objects(self) -> set[str]:
        """What the store has besides its index, and besides what killed processes had not finished to write."""
        found = (self.bucket / "steps").rglob("[!.]*")
        return {str(path.relative_to(self.bucket)) for path in found if path.is_file()}

    def caches(self, number: int) -> list[int]:
        """The steps in a machine's checkpoint cache."""
        return [step for step, _ in layout.list_iterations(self.machines[number] / "checkpoints")]

    def wait_failed(self) -> list[str]:
        """Wait until a save has failed. Returns why each one has."""
        self.wait_event("checkpoint_failed")
        return [event["error"] for event in self.events("checkpoint_failed")]

    def began(self, count: int) -> float:
        """When the `count`-th head has begun."""
        return float(self.events("job_started")[count - 1]["mono"])

    def assert_went_on(self, alone: FtJob, *, at: int) -> None:
        """The last life has resumed from storage at a step, and ends as an undisturbed job."""
        assert [one["source"] for one in self.events("resumed")] == ["storage"], self.transcript
        assert self.events("resumed")[0]["step"] == at, self.transcript
        assert not self.events("resume_differs")
        assert self.final() == alone.final()
        assert max(self.index.steps) == 30
        assert self.objects() == self.index.objects, "nothing but checkpoints is left"


def helpers(job: StoreJob, module: str) -> list[int]:
    """The pids of the job's helper processes that run a module."""
    found = []
    for pid in carriers(job.tag):
        with contextlib.suppress(psutil.NoSuchProcess):
            if module in psutil.Process(pid).cmdline():
                found.append(pid)
    return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreJob]:
    job = StoreJob(tmp_path)
    yield job
    job.dispose()


@pytest.mark.slow
def test_a_start_with_nothing_left_to_train_stores_what_only_the_shared_cache_has(store: StoreJob) -> None:
    """Taken out: the job ends with 0, and the store lacks the last step."""
    store.is_shared = True
    store.options = (*store.options, "--storage-interval", "1000")
    store.begin()
    keepers = helpers(store, KEEPER)
    for pid in keepers:
        os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: store.caches(0) == [30], "the commit of the last step in the cache")
    assert keepers
    assert not store.events("checkpoint_stored"), "the keeper is stopped"
    store.kill_all()
    store.begin_again()
    assert store.codes()[2:] == [0, 0], store.transcript
    assert [one["steps"] for one in store.events("checkpoint_stored")] == [[30]]
    assert max(store.index.steps) == 30


@pytest.mark.slow
@pytest.mark.parametrize("is_shared", [False, True], ids=["own caches", "a shared cache"])
def test_all_machines_are_lost(store: StoreJob, alone: FtJob, *, is_shared: bool) -> None:
    """Taken out (`caches.fetch` in `ClusterSaver`): the second node has no checkpoint to resume from."""
    store.is_shared = is_shared
    store.words = SLOW
    store.begin()
    store.wait_event("checkpoint_stored", count=2)
    store.lose_all()
    at = max(store.index.steps)
    assert at < 30
    store.words = ("--steps", "30")
    store.begin()
    assert store.codes()[2:] == [0, 0], store.transcript
    assert store.events("store_opened")[0]["brought"] == [at]
    store.assert_went_on(alone, at=at)
    if not is_shared:
        assert store.caches(3) == [at]
        assert not list((store.machines[3] / "checkpoints").glob(".part-*"))
    store.assert_clean()


@pytest.mark.slow
def test_a_shard_that_was_changed_in_the_store_is_refused(store: StoreJob, alone: FtJob) -> None:
    store.words = SLOW
    store.begin()
    store.wait_event("checkpoint_stored", count=2)
    store.lose_all()
    newest, older = sorted(store.index.steps, reverse=True)[:2]
    (shard,) = [path for path in store.bucket.rglob("*-model-0000003-*") if f"{newest:07d}-" in path.parent.name]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    store.words = ("--steps", "30")
    store.begin()
    assert store.codes()[2:] == [0, 0], store.transcript
    (refused,) = store.events("store_opened")[0]["refused"]
    assert refused["step"] == newest
    assert "does not match its checksum" in refused["why"]
    store.assert_went_on(alone, at=older)


@pytest.mark.slow
def test_empty_machines_whose_store_is_damaged_refuse_to_begin_anew(store: StoreJob) -> None:
    """Taken out (`damaged_store`): the ranks begin with step 1."""
    store.words = SLOW
    store.begin()
    store.wait_event("checkpoint_stored", count=2)
    store.lose_all()
    assert damage_all(store.bucket)
    store.words = ("--steps", "30")
    store.begin()
    assert store.codes()[2] == 1, store.transcript
    assert f"cannot resume: all checkpoints in {store.address} are damaged" in store.transcript
    assert not store.events("resumed")


@pytest.mark.slow
def test_a_node_is_lost_while_it_uploads(store: StoreJob, alone: FtJob) -> None:
    """What it had uploaded belongs to no checkpoint: its successor goes on from the step before, with an empty disk."""
    store.words = ("--steps", "30", "--step-time", "1")
    store.options = (*store.options, "--storage-bandwidth", "20KB/s")
    store.begin()
    store.wait_event("checkpoint_stored", seconds=60.0)
    (at,) = store.index.steps

    def uploading() -> list[Path]:
        found = store.bucket.rglob("*-000000[23]-0000004.safetensors")
        return [path for path in found if f"_{at:07d}-" not in path.parent.name]

    (torn, *_) = wait_for(uploading, "a shard of the next step", 60.0)
    keepers = [process.pid for process in keepers_of(store.supervisors[1].pid)]
    assert keepers, "the process that uploads"
    ranks = store.ranks_of(1)
    store.supervisors[1].kill()
    for pid in keepers:
        os.kill(pid, signal.SIGKILL)
    store.wait_gone([*ranks, *keepers])
    shutil.rmtree(store.memory_of(1))
    shutil.rmtree(store.machines[1])
    (failed, *_) = store.wait_failed()
    assert "node 1, which held a part of it, is lost" in failed
    assert sorted(store.index.steps) == [at]
    store.machine(1)
    assert store.codes() == [0, -signal.SIGKILL, 0], store.transcript
    assert store.resumed()[:2] == ("storage", at)
    assert not [name for name in store.objects() if torn.parent.name in name], "nothing of it is left"
    store.assert_same_end(alone)


def keepers_of(agent: int) -> list[psutil.Process]:
    """The processes of an agent that reach the store."""
    return [
        process
        for process in psutil.Process(agent).children()
        if "ftlaunch.checkpoints.stores.keeper" in process.cmdline()
    ]


@pytest.mark.slow
def test_the_process_that_uploads_is_killed_on_a_node(store: StoreJob, alone: FtJob) -> None:
    store.words = SLOW
    store.begin()
    store.wait_event("checkpoint_stored")
    (keeper,) = keepers_of(store.supervisors[1].pid)
    keeper.kill()
    assert store.codes() == [0, 0], store.transcript
    failed = [event["error"] for event in store.events("checkpoint_failed")]
    assert all("node 1: the process that reaches the store has died (-9)" in error for error in failed)
    assert len(failed) <= 1, "another one has taken its place"
    assert max(store.index.steps) == 30
    store.assert_same_end(alone)
    store.assert_clean()


@pytest.mark.slow
def test_the_process_that_commits_is_killed_on_the_head(store: StoreJob, alone: FtJob) -> None:
    """Taken out: no step is stored any more, and the job says so once."""
    store.words = SLOW
    store.begin()
    store.wait_event("checkpoint_stored")
    term = store.index.term
    for keeper in keepers_of(store.head):
        keeper.kill()
    store.wait_event("keeper_died")
    assert store.codes() == [0, 0], store.transcript
    assert not store.events("checkpoint_not_stored")
    assert max(store.index.steps) == 30
    assert store.index.term == term + 1
    store.assert_same_end(alone)
    store.assert_clean()


@pytest.mark.slow
def test_another_head_commits_on(store: StoreJob, alone: FtJob) -> None:
    """The killed head's keeper could not commit any more: the store has another term."""
    store.words = SLOW
    store.begin()
    store.wait_event("checkpoint_stored")
    head = store.head
    term = store.index.term
    os.kill(head, signal.SIGKILL)
    store.wait_event("job_started", 2)
    assert store.head != head
    assert store.codes() == [0, 0], store.transcript
    assert store.index.term == term + 1
    stored = [event["steps"][0] for event in store.events("checkpoint_stored") if event["mono"] > store.began(2)]
    assert stored[-1] == 30
    assert len(stored) >= 2
    assert not store.events("incident"), store.transcript
    assert store.objects() == store.index.objects
    store.assert_same_end(alone)
    store.assert_clean()


@pytest.mark.slow
def test_a_head_on_another_machine_goes_on_from_the_store(store: StoreJob, alone: FtJob) -> None:
    """The run dir is shared and the caches are not: the next head finds in the store what its own cache lacks.

    Taken out (`stored` in `ResumeDecision`): its cache is empty, so the job begins anew.
    """
    store.words = ("--steps", "30", "--step-time", "0.6")
    caches = [store.home / f"cache_{number}" for number in range(3)]

    def start(rank: int, number: int) -> None:
        store.agent("--node-rank", str(rank), "--checkpoint-cache", str(caches[number]), *store.store)

    start(0, 0)
    store.wait_event("job_started")
    start(1, 1)
    store.wait_event("checkpoint_stored")
    head = psutil.Process(store.head)
    agent = psutil.Process(store.supervisors[store.speaker].pid)
    assert store.speaker == 0
    gone = [head, agent, *head.children(recursive=True), *agent.children(recursive=True)]
    at = max(store.index.steps)
    for process in gone:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    store.supervisors[0].wait()
    shutil.rmtree(store.memory_of(0))
    shutil.rmtree(caches[0])
    store.wait_event("job_started", 2)
    assert store.speaker == 1
    assert not layout.list_iterations(caches[1]), "its cache has no checkpoint"
    start(0, 2)
    assert store.codes() == [-signal.SIGKILL, 0, 0], store.transcript
    source, step, _ = store.resumed()
    assert (source, step >= at) == ("storage", True), store.transcript
    assert [step for step, _ in layout.list_iterations(caches[2])] == [step]
    assert store.objects() == store.index.objects
    store.assert_same_end(alone)


@pytest.mark.slow
def test_what_was_saved_on_a_stop_is_in_the_store_when_the_job_ends(store: StoreJob, alone: FtJob) -> None:
    store.words = SLOW
    store.options = (*store.options, "--storage-interval", "1000")
    store.begin()
    store.wait_step(3)
    store.supervisors[0].send_signal(signal.SIGINT)
    assert store.codes() == [75, 75], store.transcript
    (saved,) = store.events("checkpoint_committed")
    assert sorted(store.index.steps) == [saved["step"]]
    store.lose_all()
    store.words = ("--steps", "30")
    store.begin()
    assert store.codes()[2:] == [0, 0], store.transcript
    store.assert_went_on(alone, at=saved["step"])


@pytest.mark.slow
def test_the_same_machines_go_on_from_their_memory(store: StoreJob, alone: FtJob) -> None:
    store.words = SLOW
    store.begin()
    store.wait_event("checkpoint_stored")
    store.wait_step(9)
    store.kill_all()
    store.begin_again()
    assert store.codes()[2:] == [0, 0], store.transcript
    source, step, _ = store.resumed()
    assert (source, step >= 8) == ("memory", True), store.transcript
    store.assert_same_end(alone)


@pytest.mark.slow
def test_memory_of_before_is_not_taken_up_once_the_job_has_begun_anew_elsewhere(store: StoreJob, alone: FtJob) -> None:
    """Taken out (`is_memory_current`): the nodes, come back, go on with a training that nobody has any more."""
    store.words = SLOW
    store.begin()
    store.wait_event("checkpoint_stored")
    store.wait_step(9)
    store.kill_all()
    other = HeadCheckpoints(open_store(store.address), store.home / "other", job=store.job_id, owner="other (pid 7)")
    other.claim()
    other.begin_life("another life")
    other.put_aside(above=-1)  # as `--fresh` does there
    store.begin_again()
    assert store.codes()[2:] == [0, 0], store.transcript
    assert store.events("resumed")[-1]["step"] == 0, "nothing of before was taken up"
    assert store.said(2).count("the job has gone on elsewhere: the steps in the memory of ") == 2, store.transcript


def test_nothing_is_saved_across_nodes_that_share_nothing(store: StoreJob, alone: FtJob) -> None:
    """Taken out (the refusal in `ClusterSaver.ask`): the head waits for parts that nobody can see."""
    store.store = ()
    store.begin()
    store.codes()
    failed = store.wait_failed()
    assert all("the nodes share no checkpoint directory; give `--checkpoint-dir` a directory" in one for one in failed)
    assert store.caches(0) == store.caches(1) == []
    assert store.final() == alone.final(), "the training itself is the same"


@pytest.mark.slow
def test_a_shared_cache_keeps_what_fits_and_the_store_keeps_all(store: StoreJob) -> None:
    """Taken out (`cache` in the request to commit of `ClusterSaver`): the cache has all six checkpoints."""
    store.is_shared = True
    store.words = ("--steps", "30", "--step-time", "0.2", "--width", "256")
    store.options = (*store.options, "--keep", "20", "--checkpoint-cache-max-size", "1MB")
    store.begin()
    assert store.codes() == [0, 0], store.transcript
    deleted = store.events("checkpoint_deleted")
    assert deleted
    assert {event["why"] for event in deleted} == {"cache"}
    assert store.index.steps.keys() == {event["step"] for event in store.events("checkpoint_committed")}
    assert set(store.caches(0)) == store.index.steps.keys() - {event["step"] for event in deleted}
    assert 30 in store.caches(0)
    store.assert_clean()

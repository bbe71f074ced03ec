"""Without a supervisor, too, checkpoints go to a store, and an empty machine goes on from there, bit for bit."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.e2e.test_alone import AloneJob
from tests.e2e.test_checkpoint_store import damage_all
from tests.support.leftovers import carriers
from tests.support.waiting import wait_for

from ftlaunch.checkpoints.stores import index
from ftlaunch.checkpoints.stores.index import Index
from ftlaunch.checkpoints.stores.store import open_store
from ftlaunch.checkpoints.stores.stored_checkpoints import StoredCheckpoints
from ftlaunch_contract.checkpoint import layout

KEEPER = b"ftlaunch.checkpoints.stores.keeper"
STEPS = ("--steps", "40", "--step-time", "0.05")


class StoredAloneJob(AloneJob):
    """A job whose checkpoints go to a folder that stands for a bucket; FTLAUNCH_RUN_DIR is the disk of the machine."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.address = f"file://{home}/bucket"
        self.given = ""  # in the place of the address, if not empty
        self.run_dir = home / "machine"
        self.storage = self.run_dir / "checkpoints"

    def begin(self, ranks: int = 0, **env: str) -> None:
        given = {"FTLAUNCH_STORAGE_INTERVAL": "5", "FTLAUNCH_VERIFY_RESUME": "off", "FTLAUNCH_JOB_ID": "net", **env}
        self.start(
            *STEPS,
            ranks=ranks,
            **{"FTLAUNCH_CHECKPOINT_DIR": self.given or f"{self.address}/", "FTLAUNCH_RUN_DIR": str(self.run_dir)},
            **given,
        )

    def end(self) -> int:
        assert self.process is not None
        return self.process.wait(90)

    def stop_after(self, steps: int) -> int:
        """Start the job, tell it to stop after some steps, and return the step that it has saved."""
        self.begin()
        self.wait_loss(steps)
        assert self.process is not None
        self.process.terminate()
        assert self.end() == 75, self.said
        return self.newest()

    @property
    def said(self) -> str:
        return (self.home / "stderr").read_text()

    @property
    def index(self) -> Index:
        content = open_store(self.address).read(index.NAME)
        assert content is not None
        return index.parse(content.data)

    def is_stored(self) -> bool:
        """Whether the store has a step."""
        content = open_store(self.address).read(index.NAME)
        return content is not None and bool(index.parse(content.data).steps)

    def keepers(self) -> list[int]:
        found = []
        for pid in carriers(self.tag):
            with suppress(OSError):
                if KEEPER in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    found.append(pid)
        return found


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[StoredAloneJob]:
    job = StoredAloneJob(tmp_path)
    yield job
    for pid in carriers(job.tag):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def calm(tmp_path_factory: pytest.TempPathFactory) -> AloneJob:
    """A job that nothing disturbed."""
    job = AloneJob(tmp_path_factory.mktemp("calm"))
    assert job.start("--steps", "40").wait(60) == 0
    return job


@pytest.mark.long
def test_what_a_stop_saved_is_in_the_store_and_an_empty_machine_goes_on(stored: StoredAloneJob, calm: AloneJob) -> None:
    step = stored.stop_after(7)
    assert max(stored.index.steps) == step
    shutil.rmtree(stored.run_dir)
    stored.begin()
    assert stored.end() == 0, stored.said
    assert f"brought step {step} from {stored.address}" in stored.said
    assert stored.losses() == calm.losses()
    assert (stored.out / "final_0").read_text() == (calm.out / "final_0").read_text()
    assert max(stored.index.steps) == 40
    assert set(open_store(stored.address).names(index.OBJECTS)) == stored.index.objects
    stored.assert_clean()


@pytest.mark.slow
def test_ranks_of_torchrun_that_are_lost_with_their_machine_go_on_from_the_store(
    stored: StoredAloneJob, tmp_path_factory: pytest.TempPathFactory
) -> None:
    calm = AloneJob(tmp_path_factory.mktemp("calm"))
    assert calm.start("--steps", "40", ranks=2).wait(60) == 0
    stored.begin(ranks=2)
    wait_for(stored.is_stored, "a step in the store")
    for pid in carriers(stored.tag):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    stored.end()
    wait_for(lambda: not carriers(stored.tag), "the end of all processes of the machine")
    shutil.rmtree(stored.run_dir)
    shutil.rmtree(stored.out)
    stored.out.mkdir()
    stored.begin(ranks=2, FTLAUNCH_TAKE_OVER_STORE="1")  # the lost keeper has not said that it left
    assert stored.end() == 0, stored.said
    step = 40 - len(stored.losses())
    assert step >= 5
    for rank in range(2):
        assert stored.losses(rank) == calm.losses(rank)[step:]
        assert (stored.out / f"final_{rank}").read_text() == (calm.out / f"final_{rank}").read_text()
    stored.assert_clean()


@pytest.mark.long
def test_a_keeper_that_is_killed_has_another_one_with_the_next_step(stored: StoredAloneJob) -> None:
    stored.begin()
    wait_for(stored.is_stored, "a step in the store")
    term = stored.index.term
    killed = stored.keepers()
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert killed
    assert stored.end() == 0, stored.said
    assert max(stored.index.steps) == 40
    assert stored.index.term == term + 1
    assert "cannot bring" not in stored.said
    stored.assert_clean()


@pytest.mark.slow
def test_an_empty_machine_whose_store_is_damaged_refuses_to_begin_anew(stored: StoredAloneJob, calm: AloneJob) -> None:
    stored.stop_after(7)
    shutil.rmtree(stored.run_dir)
    assert damage_all(Path(stored.address.removeprefix("file://")))
    before = stored.losses()
    stored.begin()
    assert stored.end() == 1, stored.said
    assert f"cannot resume: all checkpoints in {stored.address} are damaged" in stored.said
    assert stored.losses() == before
    shutil.rmtree(stored.out)
    stored.out.mkdir()
    stored.begin(FTLAUNCH_FRESH="1")
    assert stored.end() == 0, stored.said
    assert stored.losses() == calm.losses()
    stored.assert_clean()


@pytest.mark.slow
def test_a_damaged_checkpoint_of_the_directory_is_taken_from_the_store(stored: StoredAloneJob, calm: AloneJob) -> None:
    step = stored.stop_after(12)
    (shard, *_) = layout.iteration_dir(stored.storage, step).glob("*.safetensors")
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    stored.begin()
    assert stored.end() == 0, stored.said
    assert f"checkpoint of step {step} refused" in stored.said
    assert stored.losses() == calm.losses(), "no step was made twice"
    stored.assert_clean()


def test_a_job_that_another_machine_has_overtaken_stops(stored: StoredAloneJob, tmp_path: Path) -> None:
    stored.begin()
    wait_for(stored.is_stored, "a step in the store")
    other = StoredCheckpoints(open_store(stored.address), tmp_path / "other", job="net", owner="other (pid 7)")
    other.claim()
    assert stored.end() == 75, stored.said
    assert f"other (pid 7) has taken over the checkpoints in {stored.address}: the job goes on there" in stored.said
    assert len(stored.losses()) < 40
    assert stored.index.owner == "other (pid 7)"
    stored.assert_clean()


@pytest.mark.long
@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("s3://me:5ecret@bucket/prefix", "a user name or a password has no place in an address"),
        ("s4://bucket/prefix", "it must be a folder, or an address that begins with file://, s3://, gs://, az://"),
        ("s3://", "it must name a place behind s3://"),
        ("s3://bucket/prefix?key=5ecret", "it must end with a path"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_before_anything_starts(
    stored: StoredAloneJob, address: str, words: str
) -> None:
    stored.given = address
    stored.begin()
    assert stored.end() == 1
    assert f"cannot attach: cannot use FTLAUNCH_CHECKPOINT_DIR: {words}" in stored.said
    assert "5ecret" not in stored.said
    assert not stored.losses_made()
    assert not (stored.home / "s3:").exists()
    stored.assert_clean()

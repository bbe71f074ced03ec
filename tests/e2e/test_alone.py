"""The hooks without a supervisor: the same script under plain python and under torchrun saves for itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.harness import JOBS, TINY, FtJob
from tests.support.leftovers import alive, carriers
from tests.support.waiting import wait_for

from ftlaunch_contract.checkpoint import layout, verify
from ftlaunch_contract.protocol import memory_root

EVERY_STEP = {"FTLAUNCH_MEMORY_INTERVAL": "1"}


class AloneJob:
    """tiny.py, or another job, without ftlaunch."""

    script = TINY

    def __init__(self, home: Path) -> None:
        self.home, self.out, self.storage = home, home / "out", home / "checkpoints"
        self.tag = f"FT_TEST=alone-{uuid.uuid4().hex}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *args: str, ranks: int = 0, **env: str) -> subprocess.Popen[bytes]:
        """ranks 0: plain python; else torchrun."""
        launcher = [sys.executable]
        if ranks:
            launcher += ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", "0"]
            launcher += [
                "--rdzv-backend",
                "c10d",
                "--rdzv-endpoint",
                "127.0.0.1:0",
                "--shutdown-timeout",
                "8",
            ]
        name, _, value = self.tag.partition("=")
        self.process = subprocess.Popen(
            [*launcher, str(self.script), "--out", str(self.out), *args],
            cwd=self.home,
            env={**os.environ, name: value, "FTLAUNCH_CHECKPOINT_DIR": str(self.storage), **EVERY_STEP, **env},
            stdout=(self.home / "stdout").open("w"),
            stderr=(self.home / "stderr").open("w"),
        )
        return self.process

    def wait_loss(self, count: int, rank: int = 0) -> None:
        path = self.out / f"loss_{rank}.csv"
        wait_for(lambda: path.exists() and len(path.read_text().splitlines()) >= count, f"{count} steps")

    def losses(self, rank: int = 0) -> list[str]:
        return (self.out / f"loss_{rank}.csv").read_text().splitlines()

    def losses_made(self) -> bool:
        """Whether a rank has made a step."""
        return any(path.stat().st_size for path in self.out.glob("loss_*.csv"))

    def newest(self) -> int:
        """The newest checkpoint's step; it must verify, and nothing half-made may lie beside it."""
        (step, directory), *_ = layout.list_iterations(self.storage)
        verify.verify(directory)
        assert layout.list_incomplete(self.storage) == []
        return step

    def assert_clean(self) -> None:
        wait_for(lambda: not carriers(self.tag), "the end of all processes", 10.0)
        root = memory_root(os.getuid())
        mine = [p for p in root.glob("alone-*-*-*") if not alive(int(p.name.split("-")[1]))] if root.exists() else []
        assert mine == []


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[AloneJob]:
    job = AloneJob(tmp_path)
    yield job
    for pid in carriers(job.tag):
        os.kill(pid, signal.SIGKILL)


SLOW = ("--steps", "40", "--step-time", "0.03")


def test_plain_python_saves_on_sigterm_resumes_and_ends_as_if_undisturbed(
    alone: AloneJob, tmp_path_factory: pytest.TempPathFactory
) -> None:
    calm = AloneJob(tmp_path_factory.mktemp("calm"))
    assert calm.start(*SLOW).wait(60) == 0
    process = alone.start(*SLOW, FTLAUNCH_VERIFY_RESUME="off")
    alone.wait_loss(7)
    process.terminate()
    assert process.wait(60) == 75, (alone.home / "stderr").read_text()
    step = alone.newest()
    assert len(alone.losses()) == step, "saved at the very boundary"
    assert alone.start(*SLOW).wait(60) == 0
    assert len(alone.losses()) == 40, "no step was made twice"
    assert alone.newest() == 40
    assert alone.losses() == calm.losses()
    assert (alone.out / "final_0").read_text() == (calm.out / "final_0").read_text()
    alone.assert_clean()


@pytest.mark.parametrize("name", ["FTLAUNCH_LOAD_CHECKPOINT", "FTLAUNCH_RUN_DIR"])
@pytest.mark.parametrize("ranks", [0, pytest.param(2, marks=pytest.mark.long)])
def test_the_address_of_a_store_is_refused_and_not_taken_for_a_folder(alone: AloneJob, name: str, ranks: int) -> None:
    assert alone.start(*SLOW, ranks=ranks, **{name: "s3://me:5ecret@bucket/prefix"}).wait(60) == 1
    said = (alone.home / "stderr").read_text()
    assert f"cannot attach: {name} begins with s3://, and without ftlaunch it must be the path of a folder" in said
    assert "5ecret" not in said
    assert not (alone.home / "s3:").exists()
    assert not alone.losses_made()
    alone.assert_clean()


@pytest.mark.slow
def test_torchrun_saves_on_an_agreed_step_and_ftlaunch_goes_on_from_it(alone: AloneJob, job: FtJob) -> None:
    """SIGTERM to torchrun, which passes it on to its ranks."""
    process = alone.start(*SLOW, ranks=2, FTLAUNCH_VERIFY_RESUME="off")
    alone.wait_loss(5)
    process.terminate()
    process.wait(60)
    step = alone.newest()
    assert len(alone.losses(0)) == len(alone.losses(1)) == step
    alone.assert_clean()
    job.start("--checkpoint-dir", str(alone.storage), args=("--out", str(alone.out), *SLOW))
    assert job.wait() == 0, job.stderr
    assert job.events("resumed")[0] | {"step": step, "source": "storage"} == job.events("resumed")[0]
    assert len(alone.losses(0)) == 40
    job.assert_clean()


@pytest.mark.slow
def test_torchrun_goes_on_with_state_that_its_ranks_have_split(
    alone: AloneJob, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Without a supervisor the ranks agree in the same way; see tests/faults/test_split_state.py."""
    calm = AloneJob(tmp_path_factory.mktemp("calm"))
    calm.script = alone.script = JOBS / "split.py"
    assert calm.start("--steps", "12", ranks=2).wait(60) == 0
    process = alone.start("--steps", "12", "--step-time", "0.1", ranks=2, FTLAUNCH_VERIFY_RESUME="off")
    alone.wait_loss(4)
    process.terminate()
    process.wait(60)
    assert 4 <= alone.newest() < 12
    assert alone.start("--steps", "12", ranks=2).wait(60) == 0, (alone.home / "stderr").read_text()
    for rank in range(2):
        assert alone.losses(rank) == calm.losses(rank)
        assert (alone.out / f"final_{rank}").read_text() == (calm.out / f"final_{rank}").read_text()
    alone.assert_clean()


@pytest.mark.slow
def test_torchrun_goes_on_from_what_it_saved(alone: AloneJob) -> None:
    process = alone.start(*SLOW, ranks=2, FTLAUNCH_VERIFY_RESUME="off")
    alone.wait_loss(5)
    process.terminate()
    process.wait(60)
    alone.newest()
    assert alone.start(*SLOW, ranks=2).wait(90) == 0, (alone.home / "stderr").read_text()
    assert len(alone.losses(0)) == 40
    alone.assert_clean()


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", ["gil 1 6", *(pytest.param(fault, marks=pytest.mark.slow) for fault in ("spin 1 6", "gil 0 6"))]
)
def test_torchrun_stuck_in_a_collective(alone: AloneJob, fault: str) -> None:
    """A rank never comes to the all_reduce of step 6: what all have in memory is saved all the same."""
    process = alone.start(*SLOW, ranks=2, FAULT=fault, FTLAUNCH_GRACE="4")
    wait_for((alone.out / "fired").exists, "the fault")
    alone.wait_loss(6)
    process.terminate()
    process.wait(60)
    assert alone.newest() == 6, (alone.home / "stderr").read_text()
    alone.assert_clean()


@pytest.mark.slow
def test_torchrun_stuck_in_a_collective_after_a_save(alone: AloneJob) -> None:
    """A checkpoint of an earlier step is no reason to leave the newer one in memory."""
    process = alone.start(*SLOW, ranks=2, FAULT="gil 1 9", FTLAUNCH_GRACE="4", FTLAUNCH_STORAGE_INTERVAL="4")
    wait_for((alone.out / "fired").exists, "the fault")
    alone.wait_loss(9)
    wait_for(lambda: layout.list_iterations(alone.storage), "a checkpoint")
    process.terminate()
    process.wait(60)
    assert alone.newest() == 9, (alone.home / "stderr").read_text()
    alone.assert_clean()


@pytest.mark.slow
def test_interval_retention_damage_and_nothing_usable(alone: AloneJob) -> None:
    """A damaged checkpoint is refused and said; nothing usable is an error and no fresh start."""
    process = alone.start("--steps", "20", "--step-time", "0.05", FTLAUNCH_STORAGE_INTERVAL="5", FTLAUNCH_KEEP="2")
    assert process.wait(60) == 0
    assert [step for step, _ in layout.list_iterations(alone.storage)] == [20, 15]
    alone.assert_clean()

    victim = next(layout.iteration_dir(alone.storage, 20).glob("*-opt-*"))
    data = bytearray(victim.read_bytes())
    data[-3] ^= 1  # one flipped bit
    victim.write_bytes(data)
    assert alone.start("--steps", "16", FTLAUNCH_STORAGE_INTERVAL="off", FTLAUNCH_KEEP="1").wait(60) == 0
    assert "checkpoint of step 20 refused" in (alone.home / "stderr").read_text()
    assert (alone.storage / "quarantine" / "iteration_0000020").is_dir()

    [(last, directory)] = layout.list_iterations(alone.storage)
    assert last == 16
    (directory / "metadata.json").write_text("{")
    made = len(alone.losses())
    for _ in range(2):  # also the second time, when only the quarantine is left
        assert alone.start("--steps", "17").wait(60) == 1
        assert "no checkpoint" in (alone.home / "stderr").read_text()
    assert len(alone.losses()) == made
    assert alone.start("--steps", "10", FTLAUNCH_FRESH="1").wait(60) == 0
    assert len(alone.losses()) == made + 10

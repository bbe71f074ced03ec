"""What a store has and a machine lacks is brought: at a start that asks for it, in mid-job, for an export."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.checkpoints import flip_a_bit, steps
from tests.support.ctl import ftctl
from tests.support.harness import JOBS, FtJob
from tests.support.leftovers import carriers
from tests.support.waiting import wait_for

from ftlaunch.checkpoints.stores import heartbeat
from ftlaunch.checkpoints.stores.heartbeat import Heartbeat, HeartbeatThread
from ftlaunch.checkpoints.stores.store import open_store
from ftlaunch.checkpoints.stores.stored_catalog import StoreCatalog
from ftlaunch.checkpoints.stores.stored_checkpoints import StoredCheckpoints
from ftlaunch_contract.checkpoint import layout

UNSOUND = JOBS / "unsound.py"
SHAPES = JOBS / "shapes.py"


def train(job: FtJob, address: str, *options: str, until: int = 30, step_time: str = "0.05", every: str = "5") -> None:
    words = ("--out", str(job.out), "--steps", str(until), "--step-time", step_time)
    job.start("--checkpoint-dir", address, "--storage-interval", every, *options, args=words)


def stored_before_last(job: FtJob) -> int:
    """The newest stored step before the last one: a busy machine may have saved a step later than it was due."""
    return int(sorted({step for event in job.events("checkpoint_stored") for step in event["steps"]})[-2])


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket"


@pytest.mark.slow
def test_a_job_begins_with_what_another_job_has_in_its_store(tmp_path: Path, address: str, calm: FtJob) -> None:
    """The second has a store of its own, and the first's is only read; the same command goes on with its own."""
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    first, second = FtJob(tmp_path / "first"), FtJob(tmp_path / "second")
    train(first, address, until=15)
    assert first.wait() == 0, first.stderr
    before = sorted(path for path in (tmp_path / "bucket").rglob("*") if path.is_file())
    step = stored_before_last(first)
    asked = ("--load-checkpoint", f"{address}/iteration_{step:07d}")
    train(second, f"file://{tmp_path}/other", *asked, until=20)
    assert second.wait() == 0, second.stderr
    assert f"brought step {step} from {address}/iteration_{step:07d} (" in second.stderr
    assert [event["step"] for event in second.events("loaded")] == [step]
    train(second, f"file://{tmp_path}/other", *asked)
    assert second.wait() == 0, second.stderr
    assert "is for the job's first start, and it has its own step 20" in second.stderr
    assert not (second.run_dir / "loaded").exists()
    assert second.final() == calm.final()
    assert sorted(path for path in (tmp_path / "bucket").rglob("*") if path.is_file()) == before
    second.assert_clean()
    first.dispose()
    second.dispose()


@pytest.mark.long
def test_a_job_begins_with_weights_in_a_bucket(job: FtJob, tmp_path: Path) -> None:
    torch.manual_seed(7)
    trained = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.ReLU(), torch.nn.Linear(12, 6))
    (tmp_path / "bucket/net").mkdir(parents=True)
    save_file(trained.state_dict(), tmp_path / "bucket/net/model.safetensors")
    asked = ("--load-checkpoint", f"file://{tmp_path}/bucket/net")
    job.start(*asked, script=SHAPES, args=("--steps", "2", "--out", "out"), ranks=1)
    assert job.wait() == 0, job.stderr
    assert f"brought 1 file from file://{tmp_path}/bucket/net (" in job.stderr
    assert "took the weights of `model` (4 tensors)" in job.log(0, 0)
    job.assert_clean()


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("file:///nowhere/at/all", "cannot load file:///nowhere/at/all: there is no such object, and none below it"),
        ("file://host/a", "cannot load file://host/a: it must be file:///PATH"),
        ("s4://bucket/a", "it must be a folder, or an address that begins with "),
        ("s3://me:5ecret@bucket/a", "a user name or a password has no place in an address"),
    ],
)
def test_what_cannot_be_brought_is_bad_usage(job: FtJob, place: str, words: str) -> None:
    job.start("--load-checkpoint", place, ranks=1)
    assert job.wait() == 2
    assert words in job.stderr
    assert "5ecret" not in job.stderr
    assert not job.events("job_started")
    job.assert_clean()


@pytest.mark.long
def test_a_job_goes_back_to_a_step_that_only_its_store_has(job: FtJob, address: str, calm: FtJob) -> None:
    train(job, address, until=15)
    assert job.wait() == 0, job.stderr
    step = stored_before_last(job)
    shutil.rmtree(layout.iteration_dir(job.run_dir / "checkpoints", step))
    train(job, address, "--load-checkpoint", str(step), every="1000")
    assert job.wait() == 0, job.stderr
    assert f"going back to step {step}; later checkpoints are now in " in job.stderr
    assert job.events("resumed")[-1]["step"] == step
    assert job.final() == calm.final()
    job.assert_clean()


@pytest.mark.slow
def test_a_step_that_is_damaged_in_the_folder_is_brought(job: FtJob, address: str, calm: FtJob) -> None:
    """Taken out (no request to the keeper): the job goes on from an older step."""
    train(job, address, step_time="0.3")
    job.wait_event("checkpoint_stored", count=2)
    job.supervisor.kill()
    job.supervisor.wait()
    wait_for(lambda: not carriers(job.tag), "the end of all processes of the machine")
    shutil.rmtree(job.memory)
    folder = job.run_dir / "checkpoints"
    step = max(steps(folder))
    assert step == job.events("checkpoint_stored")[-1]["steps"][-1]
    flip_a_bit(layout.iteration_dir(folder, step))
    train(job, address)
    assert job.wait() == 0, job.stderr
    assert [(event["step"], event["steps_lost"]) for event in job.events("checkpoint_rejected")] == [(step, 0)]
    assert [event["steps"] for event in job.events("checkpoints_brought")] == [[step]]
    assert f"brought step {step} from {address}" in job.stderr
    assert (folder / layout.QUARANTINE / f"iteration_{step:07d}").is_dir()
    assert [(event["source"], event["step"]) for event in job.events("resumed")][-1] == ("storage", step)
    assert job.final() == calm.final()
    job.assert_clean()


@pytest.mark.slow
def test_a_job_goes_back_to_a_healthy_step_that_only_its_store_has(job: FtJob, address: str) -> None:
    args = ("--out", str(job.out), "--poison", "45")
    store = ("--backoff-first", "0.1s", "--storage-interval", "5", "--checkpoint-dir", address)
    job.start(*store, "--keep", "1", script=UNSOUND, args=(*args, "--steps", "20"), ranks=1)
    assert job.wait() == 0, job.stderr
    assert any(line.startswith("nan 0") for line in job.fired())
    folder = job.run_dir / "checkpoints"
    healthy = min(steps(folder))
    assert 5 <= healthy < 12
    shutil.rmtree(layout.iteration_dir(folder, healthy))
    job.start(*store, "--on-nan", "rollback", script=UNSOUND, args=args, ranks=1)
    assert job.wait() == 0, job.stderr
    assert [event["steps"] for event in job.events("checkpoints_brought")] == [[healthy]]
    assert job.events("rolled_back")[0]["step"] == healthy
    job.assert_clean()


@pytest.mark.slow
def test_a_stored_step_is_exported(job: FtJob, address: str) -> None:
    job.start("--checkpoint-dir", address, script=SHAPES, args=("--steps", "3", "--out", "out"), ranks=1)
    assert job.wait() == 0, job.stderr
    shutil.rmtree(job.run_dir)
    target = job.home / "weights"
    code, out, err = ftctl("checkpoints", address, "export", "3", target, "--to", "hf", cwd=job.home)
    assert code == 0, err
    assert str(target) in out
    assert len(load_file(target / "model.safetensors")) == 4
    assert not list(job.home.glob(".ftlaunch-*"))
    code, _, err = ftctl("checkpoints", address, "export", "4", target, "--to", "hf", cwd=job.home)
    assert code == 1
    assert f"cannot export: there is no checkpoint of step 4 in {address}; it has 3" in err


@pytest.mark.slow
def test_a_job_that_runs_elsewhere_is_not_overtaken(job: FtJob, address: str) -> None:
    """Two supervisors of one job cannot run on one machine: the other one is there as what its keeper does."""
    other = StoredCheckpoints(open_store(address), job.home / "other", job=job.job_id, owner="other (pid 7)")
    other.claim()
    thread = HeartbeatThread(
        open_store(address), other.token, owner="other (pid 7)", overtaken=lambda _: None, period_seconds=1.0
    )
    thread.start()
    train(job, address)
    assert job.wait() == 2, job.stderr
    assert "waiting up to 100 s for a sign of life of other (pid 7), which has kept " in job.stderr
    runs = f"cannot use {address} as `checkpoint_dir`: job {job.job_id} runs on other (pid 7) since "
    assert runs in job.stderr
    assert "stop it there, or if that machine is lost start here with --take-over-store" in job.stderr
    assert not job.events("job_started")
    train(job, address, "--take-over-store")
    assert job.wait() == 0, job.stderr
    thread.end()
    assert StoreCatalog(open_store(address)).index.claim != other.token
    job.assert_clean()


@pytest.mark.slow
def test_a_machine_that_is_lost_is_waited_for(job: FtJob, address: str) -> None:
    other = StoredCheckpoints(open_store(address), job.home / "other", job=job.job_id, owner="other (pid 7)")
    other.claim()
    lost = Heartbeat(other.token, "other (pid 7)", "2099-01-01 00:00:00 UTC")
    open_store(address).replace(heartbeat.NAME, heartbeat.dump(lost), None)
    began = time.monotonic()
    train(job, address)
    assert job.wait(200.0) == 0, job.stderr
    assert time.monotonic() - began > heartbeat.SILENT_SECONDS
    assert "waiting up to 100 s for a sign of life of other (pid 7)" in job.stderr
    job.assert_clean()


@pytest.mark.long
def test_a_job_that_has_ended_is_not_waited_for(job: FtJob, address: str) -> None:
    """Nor is one whose supervisor was killed: its keeper says so. A start that is refused leaves no doubt, either."""
    train(job, address, step_time="0.2")
    job.wait_event("checkpoint_stored")
    job.supervisor.kill()
    job.supervisor.wait()
    wait_for(lambda: not carriers(job.tag), "the end of all processes of the machine")
    found = open_store(address).read(heartbeat.NAME)
    beat = None if found is None else heartbeat.parse(found.data)
    assert beat is not None
    assert beat.ended
    job.start("--checkpoint-dir", address, "--load-checkpoint", "3", ranks=2)
    assert job.wait() == 2
    assert "cannot load step 3: " in job.stderr
    found = open_store(address).read(heartbeat.NAME)
    beat = None if found is None else heartbeat.parse(found.data)
    assert beat is not None
    assert beat.ended

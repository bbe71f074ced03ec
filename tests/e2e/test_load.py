"""Beginning with a checkpoint: another job's, only its weights, or going back to one of its own."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.support import mindformers
from tests.support.checkpoints import content_of, flip_a_bit, steps
from tests.support.harness import JOBS, FtJob
from torch.distributed.checkpoint.state_dict_saver import save

from ftlaunch_contract.checkpoint import layout

SHAPES = JOBS / "shapes.py"


def run(job: FtJob, until: int, *options: str, code: int = 0) -> dict[str, Any]:
    """Run one process under ftlaunch until it has made `until` steps; returns what it told when it began."""
    out = job.home / f"out_{len(job.supervisors)}"
    options = ("--storage-interval", "off", "--max-restarts", "0", *options)
    job.start(*options, script=SHAPES, args=("--steps", str(until), "--out", str(out)), ranks=1)
    assert job.wait() == code, job.stderr
    told = out / "begin_0.json"
    return dict(json.loads(told.read_text())) if told.exists() else {}


def end(job: FtJob) -> dict[str, Any]:
    return dict(json.loads((job.home / f"out_{len(job.supervisors) - 1}" / "end_0.json").read_text()))


@pytest.fixture
def jobs(tmp_path: Path) -> Any:
    """Two jobs, each in a directory of its own."""
    pair = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        pair.append(FtJob(tmp_path / name))
    yield pair
    for job in pair:
        job.dispose()


@pytest.mark.slow
def test_a_job_begins_with_the_checkpoint_of_another(jobs: list[FtJob]) -> None:
    first, second = jobs
    run(first, 4)
    last, source = end(first), first.run_dir / "checkpoints"
    assert steps(source) == [4]

    begin = run(second, 0, "--load-checkpoint", str(layout.iteration_dir(source, 4)), "--no-resume-training")
    assert (begin["step"], begin["from"], begin["weights"]) == (0, None, last["weights"])
    assert begin["digest"] != last["digest"], "no optimizer state"
    assert begin["lr"] == 0.05
    assert begin["rng"] != last["rng"]
    assert second.events("loaded")[0]["weights_only"]
    assert "taking the weights of step 4" in second.stderr
    command = [sys.executable, "-m", "ftlaunch.cli.ctl", "report", str(second.run_dir)]
    assert b"begun with weights of step 4 from " in subprocess.run(command, capture_output=True, check=True).stdout

    begin = run(second, 5, "--load-checkpoint", str(source))
    told = {key: begin[key] for key in ("step", "from", "digest", "rng", "lr")}
    assert told == {"step": 4, "from": "storage", **{key: last[key] for key in ("digest", "rng", "lr")}}
    assert steps(second.run_dir / "checkpoints") == [5]
    assert steps(source) == [4], "it is only read"

    begin = run(second, 6, "--load-checkpoint", str(source))
    assert begin["step"] == 5, "the same command goes on with what it has"
    assert "is for the job's first start, and it has its own step 5" in second.stderr
    first.assert_clean()
    second.assert_clean()


@pytest.mark.slow
def test_a_job_goes_back_once(job: FtJob) -> None:
    own = job.run_dir / "checkpoints"
    run(job, 4)
    run(job, 6)
    assert run(job, 7, "--load-checkpoint", "4")["step"] == 4
    assert "going back to step 4; later checkpoints are now in " in job.stderr
    assert steps(next(own.glob("superseded-*"))) == [6]
    assert run(job, 8, "--load-checkpoint", "4")["step"] == 7, "the same command, as a scheduler gives it again"
    assert "went back to step 4 before" in job.stderr
    job.assert_clean()


@pytest.mark.slow
def test_what_is_damaged_is_not_begun_with(jobs: list[FtJob]) -> None:
    first, second = jobs
    run(first, 2)
    [(_, path)] = layout.list_iterations(first.run_dir / "checkpoints")
    flip_a_bit(path)
    assert run(second, 3, "--load-checkpoint", str(path), code=1) == {}
    assert f"cannot load {path}: it is not a usable checkpoint" in second.stderr
    assert "of step 2 refused: " in second.stderr
    assert path.is_dir()
    second.assert_clean()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--load-checkpoint", "nowhere"), "nowhere: there is no such file or directory"),
        (("--load-checkpoint", "7"), "cannot load step 7: "),
        (("--load-checkpoint", "run/checkpoints", "--no-resume-training"), "give another checkpoint directory"),
        (("--no-resume-training",), "only the weights of what? give `load_checkpoint` too"),
    ],
)
def test_what_makes_no_sense_is_bad_usage(job: FtJob, options: tuple[str, ...], words: str) -> None:
    run(job, 1, *options, code=2)
    assert words in job.stderr
    assert not (job.run_dir / "events.jsonl").exists()
    job.assert_clean()


# --- of other libraries -----------------------------------------------------------------------------------------


def weights_of(module: torch.nn.Module) -> str:
    return hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in module.parameters())).hexdigest()


def _as_hf(path: Path, state: dict[str, torch.Tensor]) -> None:
    path.mkdir()
    save_file(state, path / "model.safetensors")


FOREIGN: dict[str, Callable[[Path, dict[str, torch.Tensor]], object]] = {
    "hf": _as_hf,
    "dcp": lambda path, state: save({"model": state, "epoch": 3}, checkpoint_id=path, no_dist=True),
    "torch.pt": lambda path, state: torch.save({"state_dict": state, "epoch": 3}, path),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param("hf", "plain", id="hf"),
        pytest.param("dcp", "fsdp", id="dcp-fsdp"),
        pytest.param("torch.pt", "ddp", id="torch-ddp", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_a_job_begins_with_the_weights_of_another_library(name: str, kind: str, job: FtJob) -> None:
    """On one rank, as shards, and on all ranks alike; a resumed run goes on with its own state."""
    torch.manual_seed(7)
    trained = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.ReLU(), torch.nn.Linear(12, 6))
    path = job.home / name
    FOREIGN[name](path, trained.state_dict())
    ranks = 1 if kind == "plain" else 2
    args = ("--steps", "40", "--kind", kind, "--out", "out", "--step-time", "0.1")
    asked = ("--load-checkpoint", str(path), "--max-restarts", "1", "--memory-interval", "1")
    job.start(*asked, script=SHAPES, args=args, ranks=ranks)
    job.wait_step(3)
    begun = json.loads((job.home / "out" / "begin_0.json").read_text())
    assert (begun["step"], begun["from"], begun["weights"]) == (0, None, weights_of(trained))
    os.kill(job.pids()[0], signal.SIGKILL)
    assert job.wait() == 0, job.stderr
    assert f"taking the weights from {path}" in job.stderr
    assert "took the weights of `model` (4 tensors)" in job.log(0, 0)
    begun = json.loads((job.home / "out" / "begin_0.json").read_text())
    assert begun["step"] >= 3, "after the kill it goes on with what it has"
    assert begun["from"] == "memory"
    job.assert_clean()


@pytest.mark.slow
def test_a_job_begins_with_the_weights_of_mindspore_transformers(job: FtJob) -> None:
    """Cut up on four cards, on two ranks of this job; and a folder of theirs is neither gone on from nor written to."""
    torch.manual_seed(7)
    trained = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.ReLU(), torch.nn.Linear(12, 6))
    cuts: dict[str, list[mindformers.Axis]] = {"0.weight": [0, 1], "0.bias": [[1, 0]], "2.weight": [-1, 0]}
    for step, weights in ((8, trained), (12, torch.nn.Linear(3, 3))):
        mindformers.write(job.home / "theirs", step, weights.state_dict(), cuts)
    (job.home / "theirs" / layout.TRACKER).write_text("8")
    before = content_of(job.home / "theirs")
    run(job, 1, "--load-checkpoint", "theirs", code=2)
    assert "theirs: it is a checkpoint of MindSpore Transformers (Checkpoint 2.0), of which only the" in job.stderr
    args = ("--steps", "40", "--kind", "fsdp", "--out", "out", "--step-time", "0.1")
    asked = ("--load-checkpoint", "theirs", "--no-resume-training", "--max-restarts", "1", "--memory-interval", "1")
    job.start(*asked, script=SHAPES, args=args, ranks=2)
    job.wait_step(3)
    begun = json.loads((job.home / "out" / "begin_0.json").read_text())
    assert (begun["step"], begun["from"], begun["weights"]) == (0, None, weights_of(trained))
    os.kill(job.pids()[0], signal.SIGKILL)
    assert job.wait() == 0, job.stderr
    assert f"taking the weights of iteration 8 from {job.home / 'theirs'}, a checkpoint of MindSpore" in job.stderr
    assert f"took the weights of `model` (4 tensors) from {job.home / 'theirs' / 'iteration_00000008'}" in job.log(0, 0)
    assert len(job.events("incident")) == 1
    begun = json.loads((job.home / "out" / "begin_0.json").read_text())
    assert begun["step"] >= 3, "after the kill it goes on with what it has"
    assert content_of(job.home / "theirs") == before
    job.assert_clean()


def test_what_does_not_fit_is_refused_with_the_names(job: FtJob) -> None:
    torch.save(torch.nn.Linear(8, 12).state_dict(), job.home / "other.pt")
    assert run(job, 1, "--load-checkpoint", "other.pt", code=1) == {}
    assert "other.pt does not fit `model`: it lacks `0.bias`, `0.weight`, `2.bias` and 1 more" in job.log(0, 0)
    job.assert_clean()

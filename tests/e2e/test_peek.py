"""peek() says before attach() where a job resumes, and attach(replicated=...) has one rank save for all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.harness import JOBS, FtJob

from ftlaunch_contract.checkpoint import layout

PEEKS = JOBS / "peeks.py"


def run(job: FtJob, *words: str, fault: str = "") -> dict[str, object]:
    """Run it to its end; returns the metadata of the last checkpoint."""
    job.start(script=PEEKS, args=(str(job.out), "8", *words), env={"FAULT": fault} if fault else {})
    assert job.wait() == 0, job.stderr
    (_, directory), *_ = layout.list_iterations(job.run_dir / "checkpoints")
    metadata: dict[str, object] = json.loads((directory / "metadata.json").read_text())
    return metadata


@pytest.mark.slow
def test_under_a_supervisor_it_is_what_attach_restores(job: FtJob) -> None:
    run(job, fault="1 5")
    assert job.fired() == ["killed"]
    assert (job.out / "peeked_1").read_text() == "0 None -\n1 5 5 [5.0, 10.0, 5.0]\n"
    assert (job.out / "peeked_0").read_text() == "0 None -\n1 5 5 [5.0, 10.0, 0.0]\n"
    job.assert_clean()


@pytest.mark.long
@pytest.mark.parametrize("words", [(), ("replicated",)], ids=["own", "replicated"])
def test_what_is_said_to_be_replicated_is_saved_once(job: FtJob, words: tuple[str, ...]) -> None:
    """Taken out: without `said` in OptimizerPart the state of an optimizer of the script's own is each rank's own."""
    metadata = run(job, *words, fault="0 3")
    assert job.fired() == ["killed"]
    assert len(set(job.final())) == 1
    tensors = metadata["tensors"]
    assert isinstance(tensors, dict)
    own = [key for key in tensors if key.endswith("@1") and not key.startswith(("rng", "position", "grad"))]
    assert bool(own) is not bool(words), own


@pytest.mark.slow
def test_without_a_supervisor_and_from_storage(tmp_path: Path) -> None:
    """Taken out: without the look at UNDECIDED in Standalone.resume a job is in its own way."""
    env = {**os.environ, "FTLAUNCH_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    for steps in ("3", "5"):
        command = [sys.executable, str(PEEKS), str(tmp_path), steps]
        subprocess.run(command, check=True, env=env, timeout=90, cwd=tmp_path)
    assert (tmp_path / "peeked_0").read_text() == "0 None -\n0 3 3 [3.0, 3.0, 0.0]\n"


NOT_TO_BE_HAD = {
    "model": "cannot peek: `model` is a module, an optimizer or a generator, whose state attach() restores into the"
    " object itself; ft.resuming() tells whether this start resumes, and peek() the step and the state of other"
    " objects",
    "optimizer": "cannot peek: `optimizer` is a module, an optimizer or a generator",
    "other": "cannot peek: step 2 was saved without an object `other`; it has `position`",
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of two steps that has ended."""
    home = tmp_path_factory.mktemp("stopped")
    subprocess.run([sys.executable, str(PEEKS), str(home), "2"], check=True, env=_env(home), timeout=90, cwd=home)
    return home


def _env(home: Path) -> dict[str, str]:
    return {**os.environ, "FTLAUNCH_CHECKPOINT_DIR": str(home / "checkpoints")}


@pytest.mark.slow
@pytest.mark.parametrize("name", NOT_TO_BE_HAD)
def test_what_cannot_be_looked_at_is_refused_in_words_that_lose_nothing(name: str, stopped: Path) -> None:
    script = f"import ftlaunch_hooks as ft\nft.peek({name!r})\n"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, check=False, env=_env(stopped), timeout=90, capture_output=True, text=True)
    assert done.returncode == 1
    assert NOT_TO_BE_HAD[name] in done.stderr
    assert "--fresh" not in done.stderr


@pytest.mark.slow
def test_resuming_after_attach_is_refused(tmp_path: Path) -> None:
    script = "import ftlaunch_hooks as ft\nassert not ft.resuming()\njob = ft.attach()\nft.resuming()\n"
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, env=_env(tmp_path), timeout=90, capture_output=True, text=True,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    assert "cannot tell whether this start resumes: attach() was called before in this process" in done.stderr

"""Scripts with a loop of their own: how their end is judged, and what is saved of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.harness import JOBS, FtJob

from ftlaunch_contract.checkpoint import health_mark, layout, verify

pytestmark = pytest.mark.long

OWN_LOOP = JOBS / "own_loop.py"


def run(job: FtJob, end: str, *options: str, steps: int = 8, fault: str = "") -> int:
    env = {"FAULT": fault} if fault else {}
    job.start("--memory-interval", "3", *options, script=OWN_LOOP, args=(str(job.out), end, str(steps)), env=env)
    return job.wait()


def newest(job: FtJob) -> int:
    (step, directory), *_ = layout.list_iterations(job.run_dir / "checkpoints")
    verify.verify(directory)
    return step


def test_finish_saves_the_last_step(job: FtJob) -> None:
    """Step 8 is no step of the interval; a rank is killed before. Taken out: without _keep_last() step 6 is saved."""
    assert run(job, "finish", fault="1 5") == 0, job.stderr
    assert job.fired() == ["killed 1 0"]
    assert [incident["kind"] for incident in job.events("incident")] == ["killed"]
    assert newest(job) == 8
    assert len(set(job.final())) == 1
    job.assert_clean()


@pytest.mark.slow
def test_a_last_step_whose_loss_was_bad_is_marked(tmp_path: Path) -> None:
    """Nothing is asked of its boundary. Taken out: without Job's `find_trouble` the mark is "normal"."""
    script = (
        "import torch, ftlaunch_hooks as ft\n"
        "job = ft.attach(model=torch.nn.Linear(2, 2))\n"
        "for loss in (1.0, 1.0, 1.0, 1.0, float('nan')): job.step_done(loss)\n"
        "job.finish()\n"
    )
    env = {"FTLAUNCH_CHECKPOINT_DIR": str(tmp_path), "FTLAUNCH_MEMORY_INTERVAL": "100"}
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, **env}, timeout=60)
    (step, directory), *_ = layout.list_iterations(tmp_path)
    assert step == 5
    mark = health_mark.of(json.loads((directory / "metadata.json").read_text()))
    assert mark == health_mark.mark("abnormal", "rank 0: the loss was nan at step 5")


@pytest.mark.parametrize("end", ["falls", pytest.param("main", marks=pytest.mark.long)])
def test_a_script_that_comes_to_its_end_has_ended_its_training(job: FtJob, end: str) -> None:
    """Taken out: without at_ordinary_end() it is "left with exit code 0 before its training loop was over"."""
    assert run(job, end) == 0, job.stderr
    assert job.events("incident") == []
    assert "ends after step 8 without job.finish()" in job.stdout + job.stderr
    assert "of which step 8 is saved" in job.stdout + job.stderr
    assert newest(job) == 8
    job.assert_clean()


def test_an_exit_that_the_interpreter_does_not_make_is_none(job: FtJob) -> None:
    """os._exit(0) in mid-training."""
    assert run(job, "os_exit") == 0, job.stderr
    assert job.fired()[0].startswith("left ")
    (incident,) = job.events("incident")
    assert incident["kind"] in ("left-early", "comm")
    assert newest(job) == 8
    job.assert_clean()


@pytest.mark.slow
def test_a_step_that_was_not_said_is_not_saved_as_the_one_before(job: FtJob) -> None:
    """Taken out: without OpenStep the state after step 8 is saved as that of step 7."""
    assert run(job, "early") == 0, job.stderr
    assert "job.finish() saves no step 7: an optimizer has stepped since" in job.stdout + job.stderr
    assert newest(job) == 6
    job.assert_clean()


def test_a_handler_that_leaves_with_0_has_not_ended_the_training(job: FtJob) -> None:
    """Told to stop, a script whose own SIGTERM handler calls sys.exit(0): 75, run me again.

    Taken out: without `stop_requested` in _script_ends() the job is done after a handful of steps.
    """
    job.start("--memory-interval", "1", script=OWN_LOOP, args=(str(job.out), "handler", "100000"))
    job.wait_step(5)
    for pid in job.pids():
        os.kill(pid, signal.SIGTERM)
    assert job.wait() == 75, job.stderr
    assert any(line.startswith("handled") for line in job.fired())
    job.assert_clean()

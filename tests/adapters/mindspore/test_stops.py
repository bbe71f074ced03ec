"""MindSpore jobs that are told to stop: the same command goes on, and ends as an undisturbed one, bit for bit."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.framework_results import logs
from tests.support.harness import FtJob
from tests.support.mindspore_jobs import left, said, signal_at, start, start_alone

from ftlaunch_contract.checkpoint import layout

pytestmark = pytest.mark.long

Undisturbed = Callable[[str], dict[str, object]]


def steps_in(directory: Path) -> list[int]:
    return sorted(step for step, _ in layout.list_iterations(directory))


def test_sigterm_and_the_same_command_again(job: FtJob, undisturbed: Undisturbed) -> None:
    start(job, "graph+slow")
    job.wait_step(7)
    job.supervisor.terminate()
    assert job.wait(60) == 75, job.stderr + logs(job)
    (step,) = steps_in(job.run_dir / "checkpoints")
    assert 7 <= step < 24
    start(job, "graph+slow")
    assert job.wait(120) == 0, job.stderr + logs(job)
    assert job.wait_event("resumed", len(job.events("resumed")))["step"] == step
    assert left(job.out) == undisturbed("graph")
    job.assert_clean()


def test_alone_sigterm_and_the_same_command_again(job: FtJob, undisturbed: Undisturbed) -> None:
    """Taken out: without the Watcher in kept_job.py the script ends by the signal, and begins anew."""
    process = start_alone(job, "pynative+functional+slow")
    signal_at(job, process, 10, signal.SIGTERM)
    assert process.wait(60) == 75, said(job)
    (step,) = steps_in(job.out / "checkpoints")
    assert 10 <= step < 24
    process = start_alone(job, "pynative+functional")
    assert process.wait(120) == 0, said(job)
    assert left(job.out) == undisturbed("pynative+functional")
    assert len((job.out / "losses").read_text().splitlines()) == 24, "a step was made twice"


def test_alone_killed_and_the_newest_are_kept(job: FtJob, undisturbed: Undisturbed) -> None:
    process = start_alone(job, "graph+saves+slow")
    signal_at(job, process, 14, signal.SIGKILL)
    process.wait()
    newest = steps_in(job.out / "checkpoints")[-1]
    assert newest in (8, 12)
    process = start_alone(job, "graph+saves")
    assert process.wait(120) == 0, said(job)
    assert left(job.out) == undisturbed("graph")
    assert (job.out / "losses").read_text().count("\n") >= 24 + 14 - newest
    kept = steps_in(job.out / "checkpoints")
    assert len(kept) == 2, "keep_checkpoint_max=2"
    assert kept[-1] == 24
    process = start_alone(job, "graph")
    assert process.wait(60) == 0, said(job)
    assert "all 24 steps of this training were made before" in said(job)
    assert left(job.out) == undisturbed("graph")

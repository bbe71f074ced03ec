"""MindSpore jobs that are told to stop: the same command goes on, and ends as an undisturbed one, bit for bit."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.framework_results import logs
from tests.support.harness import JOBS, FtJob
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


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_the_lines_of_modelarts(
    sign: signal.Signals, job: FtJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK_ID", "0")
    script = JOBS / "mindspore_modelarts.py"
    calm = FtJob(tmp_path / "calm")
    calm.home.mkdir()
    process = start_alone(calm, "as it is", script)
    assert process.wait(60) == 0, said(calm)
    process = start_alone(job, "slow", script)
    signal_at(job, process, 9, sign)
    assert process.wait(60) == (75 if sign == signal.SIGTERM else -signal.SIGKILL), said(job)
    (step, *_) = steps_in(job.out / "train_url")[::-1]
    assert step >= 9 if sign == signal.SIGTERM else step == 6
    common = json.loads((job.out / f"train_url/iteration_{step:07d}/common.json").read_text())
    assert common["state"]["training"]["append_info"] == {"epoch_num": 0}
    assert list((job.out / "train_url").glob(f"iteration_{step:07d}/train_resnet_cifar10-model-0000000-0000001.*"))
    process = start_alone(job, "fast", script)
    assert process.wait(60) == 0, said(job)
    assert left(job.out) == left(calm.out)
    if sign == signal.SIGTERM:
        assert list((job.out / "train_url").glob("*_breakpoint.ckpt")), "MindSpore's own is made beside"

"""The lines of ModelArts' document, of which only the import is another one: on one rank and on two, with no option."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.framework_results import logs
from tests.support.harness import JOBS, FtJob
from tests.support.mindspore_jobs import (
    left,
    left_by,
    said,
    signal_at,
    start,
    start_alone,
    start_by_msrun,
    undisturbed,
)
from tests.support.waiting import wait_for

from ftlaunch_contract.checkpoint import layout

pytestmark = pytest.mark.long

SCRIPT = JOBS / "mindspore_modelarts.py"
EPOCH = 6
"""steps, between which `save_checkpoint_steps=batch_num` saves"""
LAST = 4 * EPOCH
Calm = Callable[[int], list[dict[str, object]]]


@pytest.fixture(scope="session")
def calm(mindspore: None, tmp_path_factory: pytest.TempPathFactory) -> Calm:
    """What each of so many ranks leaves without anything of ours."""
    known: dict[int, list[dict[str, object]]] = {}

    def run(ranks: int) -> list[dict[str, object]]:
        if ranks not in known:
            known[ranks] = undisturbed(tmp_path_factory.mktemp(f"calm_{ranks}"), "fast", ranks, SCRIPT)
        return known[ranks]

    return run


def steps_in(directory: Path) -> list[int]:
    return sorted(step for step, _ in layout.list_iterations(directory))


def left_of(ranks: int, job: FtJob) -> list[dict[str, object]]:
    return [left(job.out)] if ranks == 1 else left_by(ranks, job.out)


@pytest.mark.parametrize(("ranks", "faults"), [(1, "step 0 9; step 0 15"), (2, "step 1 9")])
def test_killed_and_as_undisturbed(ranks: int, faults: str, job: FtJob, calm: Calm) -> None:
    """On two ranks the document gives the callback to rank 0 alone.

    Taken out: without roles.adopt() on one rank `int(None)` is a TypeError; without settings.exchange() rank 0 waits
    for rank 1 to take part, and rank 1 for rank 0 in an AllReduce.
    """
    start(job, "fast", ranks=ranks, faults=faults, script=SCRIPT)
    assert job.wait(200) == 0, job.stderr + logs(job)
    assert [line.rpartition(" ")[0] for line in job.fired()] == faults.split("; ")
    assert [event["source"] for event in job.events("resumed")[1:]] == ["memory"] * len(job.fired())
    assert left_of(ranks, job) == calm(ranks)
    told = logs(job).count("rank 1 has no ExceptionCheckpoint, and rank 0 has one: all ranks are kept")
    assert told == ranks - 1
    job.assert_clean()


@pytest.mark.parametrize("ranks", [1, 2])
def test_stopped_and_the_same_command_again(ranks: int, job: FtJob, calm: Calm) -> None:
    start(job, "slow", ranks=ranks, script=SCRIPT)
    job.wait_step(9)
    os.kill(job.supervisor.pid, signal.SIGTERM)
    assert job.wait(60) == 75, job.stderr + logs(job)
    start(job, "fast", ranks=ranks, script=SCRIPT)
    assert job.wait(150) == 0, job.stderr + logs(job)
    (stop,) = [event["step"] for event in job.events("checkpoint_committed") if event["why"] == "stop"]
    assert job.wait_event("resumed", len(job.events("resumed")))["step"] == stop >= 9
    saved = [event["step"] for event in job.events("checkpoint_committed")]
    assert sorted({*saved} - {stop}) == sorted({EPOCH, 2 * EPOCH, 3 * EPOCH, LAST} - {stop})
    assert left_of(ranks, job) == calm(ranks)
    job.assert_clean()


@pytest.mark.parametrize("options", [(), ("--keep", "2"), ("--storage-interval", "off")])
def test_the_config_decides_where_no_option_does(options: tuple[str, ...], job: FtJob) -> None:
    """Every step is saved, and 35 of them are kept: with 5, or by asking the supervisor at each step, there are fewer.

    Taken out: without StepSchedule.await_saver() a step is held that the one before it is saved over.
    """
    start(job, "every", *options, script=SCRIPT)
    assert job.wait(150) == 0, job.stderr + logs(job)
    committed = [event["step"] for event in job.events("checkpoint_committed")]
    every = [LAST] if "off" in options else [*range(1, LAST + 1)]
    assert committed == every
    assert steps_in(job.run_dir / "checkpoints") == every[-2 if "2" in options else -35 :]
    told = logs(job).count(
        f"of the CheckpointConfig is not used, as the job was given {' '.join(options)}, which holds"
    )
    assert told == bool(options)
    job.assert_clean()


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_alone(sign: signal.Signals, job: FtJob, calm: Calm) -> None:
    process = start_alone(job, "slow", SCRIPT)
    signal_at(job, process, 9, sign)
    assert process.wait(60) == (75 if sign == signal.SIGTERM else -signal.SIGKILL), said(job)
    (step, *_) = steps_in(job.out / "train_url")[::-1]
    assert step >= 9 if sign == signal.SIGTERM else step == EPOCH
    common = json.loads((job.out / f"train_url/iteration_{step:07d}/common.json").read_text())
    assert common["state"]["training"]["append_info"] == {"epoch_num": 0}
    assert list((job.out / "train_url").glob(f"iteration_{step:07d}/train_resnet_cifar10-model-0000000-0000001.*"))
    process = start_alone(job, "fast", SCRIPT)
    assert process.wait(60) == 0, said(job)
    assert left_of(1, job) == calm(1)
    assert {EPOCH, 2 * EPOCH, 3 * EPOCH, LAST} <= {*steps_in(job.out / "train_url")}
    if sign == signal.SIGTERM:
        assert list((job.out / "train_url").glob("*_breakpoint.ckpt")), "MindSpore's own is made beside"


def test_by_msrun(job: FtJob, calm: Calm) -> None:
    process = start_by_msrun(job, "slow", script=SCRIPT)
    kept = job.out / "train_url"
    wait_for(lambda: EPOCH in steps_in(kept), "the first checkpoint", 90.0)
    process.kill()
    process.wait()
    job.dispose()
    newest = steps_in(kept)[-1]
    assert not newest % EPOCH
    process = start_by_msrun(job, "fast", script=SCRIPT)
    assert process.wait(120) == 0, said(job)
    assert left_by(2, job.out) == calm(2)

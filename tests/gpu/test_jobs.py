"""Whole jobs on a GPU: they go on bit for bit after each fault, and the GPU's memory is free before they do."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.harness import FtJob
from tests.support.waiting import wait_for
from tests.zoo.test_zoo import Shape, disturb, finals, losses, undisturbed

TRAIN = Path(__file__).parent / "shapes" / "train.py"


def check_holders(folder: Path, device: str, attempts: int) -> None:
    """No process of an earlier attempt holds memory of the GPU as an attempt begins."""
    notes = [[int(word) for word in line.split()] for line in (folder / "holders").read_text().splitlines()]
    assert {attempt for attempt, *_ in notes} == set(range(attempts))
    for attempt, pid, *holders in notes:
        earlier = {other for number, other, *_ in notes if number < attempt}
        assert not earlier & set(holders), f"attempt {attempt} began before the GPU's memory was free"
        assert device != "cuda" or pid in holders


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("way", "ranks"), [("plain", 1), ("amp", 1), ("compile", 1), ("ddp", 1), ("ddp", 2), ("fsdp2", 1)]
)
def test_killed_twice_it_ends_as_if_undisturbed(
    job: FtJob, monkeypatch: pytest.MonkeyPatch, device: str, way: str, ranks: int
) -> None:
    monkeypatch.setenv("FT_DEVICE", device)  # for the job
    monkeypatch.setenv("FT_WAY", way)
    shape = Shape(TRAIN, ranks, "Exact", "")
    codes, calm = undisturbed(shape, job.home, FT_DEVICE=device, FT_WAY=way)
    assert not any(codes), (calm / "said_0").read_text()
    broken = disturb(shape, job)
    assert job.supervisor.returncode == 0, job.stderr + job.log(0, 0)
    assert len(list(broken.glob("killed_*"))) == 2
    assert finals(broken) == finals(calm)
    assert losses(broken) == losses(calm)
    check_holders(broken, device, attempts=3)


def start(job: FtJob, out: Path, device: str, *options: str, **env: str) -> None:
    out.mkdir(exist_ok=True)
    job.start(
        *("--warm", "--preload", "torch._dynamo", *options),
        script=TRAIN,
        args=(),
        env={"ZOO_OUT": str(out), "FT_DEVICE": device, **env},
        ranks=1,
    )


@pytest.mark.timeout(400)
def test_a_hang_is_named_and_the_memory_is_free_again(job: FtJob, device: str) -> None:
    out = job.home / "hung"
    start(job, out, device, "--hang-timeout", "5s", FT_HANG="8")
    assert job.wait() == 0, job.stderr
    assert (out / "hangs").exists()
    assert [incident["kind"] for incident in job.events("incident")] == ["hang"]
    check_holders(out, device, attempts=2)


@pytest.mark.timeout(400)
def test_sigterm_saves_what_is_on_the_gpu(job: FtJob, device: str) -> None:
    out = job.home / "stopped"
    start(job, out, device, FT_STOP="8")
    wait_for((out / "stops").exists, "the step in which it is told to stop", 120.0)
    os.kill(job.supervisor.pid, signal.SIGTERM)
    assert job.wait() == 75, job.stderr
    start(job, out, device)
    assert job.wait() == 0, job.stderr
    assert sorted(losses(out)[0]) == list(range(20)), "and a step that was made twice was made alike"

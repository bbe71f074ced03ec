"""Incremental resume: new data with the old schedule, a new schedule at the old position, another batch size."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.harness import JOBS, FtJob

PARTS = JOBS / "in_parts.py"
EPOCHS = JOBS / "part_epochs.py"


@pytest.fixture
def twice(tmp_path: Path) -> Iterator[list[FtJob]]:
    """Two identical jobs in two directories: one for the test to kill, one to compare with."""
    pair = []
    for name in ("killed", "alone"):
        (tmp_path / name).mkdir()
        pair.append(FtJob(tmp_path / name))
    yield pair
    for job in pair:
        job.dispose()


def start(job: FtJob, until: int, *args: str, part: int = 1) -> None:
    words = ("--until", str(until), "--part", str(part), "--out", "out", *args)
    job.start("--max-restarts", "1", "--memory-interval", "1", script=PARTS, args=words, ranks=1)


def end(job: FtJob, part: int = 1) -> dict[str, Any]:
    assert job.wait() == 0, job.stderr
    return dict(json.loads((job.home / "out" / f"{part}.json").read_text()))


@pytest.mark.slow
def test_new_data_with_the_old_schedule(twice: list[FtJob]) -> None:
    """The data begins anew once: a rank that is killed in the second part goes on in the second part."""
    ends = []
    for job in twice:
        start(job, 10)
        first = end(job)
        slow = ("--step-time", "0.1") if job is twice[0] else ()
        start(job, 24, *slow, part=2)
        if slow:
            job.wait_step(15)
            os.kill(job.pids()[0], signal.SIGKILL)
        ends.append(end(job, 2))
        began = "`sampler` begins anew (part 2), at its first sample; samples are counted on from 80"
        assert began in job.log(0, 0)
        assert first["consumed"] == 80
        job.assert_clean()
    killed = twice[0]
    assert len(killed.events("incident")) == 1
    assert "begins anew" not in killed.log(1, 0)
    assert ends[0] == ends[1]
    assert ends[1]["consumed"] == 80 + 14 * 8
    # one schedule over both parts
    assert ends[1]["lr"] == pytest.approx([0.05 * (1 + math.cos(math.pi * 24 / 40)) / 2]), (
        "one schedule over both parts"
    )


def start_epochs(job: FtJob, part: int, epochs: int, *args: str) -> None:
    words = ("--part", str(part), "--epochs", str(epochs), "--out", "out", *args)
    job.start("--max-restarts", "1", "--memory-interval", "1", script=EPOCHS, args=words, ranks=1)


@pytest.mark.slow
def test_new_data_with_as_many_epochs_as_all_parts_need(twice: list[FtJob]) -> None:
    """The number of epochs counts those of all parts: with as many as are made already, nothing is left to train."""
    ends = []
    for job in twice:
        start_epochs(job, 1, 1)
        first = end(job)
        assert (first["step"], first["consumed"], first["epochs"]) == (8, 64, [0])
        start_epochs(job, 2, 1)
        none = end(job, 2)
        assert (none["step"], none["weights"], none["lr"]) == (8, first["weights"], first["lr"])
        assert "nothing was left to train" in job.stderr
        start_epochs(job, 2, 3, "--step-time", "0.1" if job is twice[0] else "0")
        if job is twice[0]:
            job.wait_step(22)
            os.kill(job.pids()[0], signal.SIGKILL)
        ends.append(end(job, 2))
        job.assert_clean()
    assert len(twice[0].events("incident")) == 1, "in the second epoch of the second part"
    killed, alone = ends
    assert killed == alone
    assert (alone["step"], alone["consumed"], alone["epochs"]) == (8 + 2 * 11, 64 + 2 * 88, [0, 1, 2])
    assert alone["lr"] == pytest.approx([0.05 * (1 + math.cos(math.pi * 30 / 40)) / 2]), "one schedule over both parts"


@pytest.mark.slow
def test_new_data_within_an_epoch(job: FtJob) -> None:
    """A part that is stopped in its second epoch: that epoch goes on with all of the new data."""
    start_epochs(job, 1, 15, "--step-time", "0.3")
    job.wait_step(10)
    os.kill(job.supervisor.pid, signal.SIGTERM)
    assert job.wait() == 75, job.stderr
    [saved] = (job.run_dir / "checkpoints").glob("iteration_*")
    stopped = int(saved.name.rpartition("_")[2])
    assert 10 <= stopped < 16, "in the second epoch"
    start_epochs(job, 2, 3)
    last = end(job, 2)
    assert (last["step"], last["epochs"]) == (stopped + 2 * 11, [0, 1, 2])
    assert last["lr"] == pytest.approx([0.05 * (1 + math.cos(math.pi * last["step"] / 40)) / 2])
    job.assert_clean()


@pytest.mark.slow
def test_a_loop_that_was_left_is_over_and_that_is_said(job: FtJob) -> None:
    """What stands behind the batches of the epoch that was left would run twice."""
    for _ in range(2):
        start_epochs(job, 1, 15, "--leave-after", "0")
        assert end(job)["step"] == 8
    start_epochs(job, 2, 15)
    assert job.wait() == 1
    assert "cannot resume: epoch 0 was left behind its last batch, by `break`" in job.log(0, 0)
    job.assert_clean()


@pytest.mark.long
def test_a_new_schedule_at_the_old_position(job: FtJob) -> None:
    start(job, 10, "--anew", "scheduler")
    end(job)
    start(job, 24, "--anew", "scheduler", "--total", "100", "--data", "1", part=2)
    last = end(job, 2)
    assert "`scheduler` begins anew (part 2), at position 10: from here on learning rates are those of" in job.log(0, 0)
    assert last["lr"] == pytest.approx([0.05 * (1 + math.cos(math.pi * 24 / 100)) / 2])
    job.assert_clean()


@pytest.mark.slow
def test_a_new_schedule_at_the_same_share_of_the_data(job: FtJob) -> None:
    """Ten steps of 8 samples are as many as five of 16: the schedule of 20 steps is where that of 40 was."""
    start(job, 10, "--anew", "scheduler")
    end(job)
    start(job, 14, "--anew", "scheduler", "--total", "20", "--data", "1", "--batch", "16", part=2)
    last = end(job, 2)
    log = job.log(0, 0)
    assert "a step takes 16 samples now, 8 when it was saved" in log
    assert "`scheduler` begins anew (part 2), at position 5 (10 steps of 8 samples are as many of 16): from here" in log
    assert last["lr"] == pytest.approx([0.05 * (1 + math.cos(math.pi * 9 / 20)) / 2])
    assert last["consumed"] == 80 + 4 * 16
    job.assert_clean()


@pytest.mark.long
def test_new_data_that_no_word_announces_is_refused(job: FtJob) -> None:
    start(job, 10)
    end(job)
    start(job, 24, "--anew", part=2)
    assert job.wait() == 1
    assert "cannot resume sampling: length is 90, 70 when it was saved; new data begins anew where" in job.stderr
    assert job.events("incident")[-1]["attempt"] == 0, "it is not tried twice"
    job.assert_clean()


@pytest.mark.long
def test_another_batch_size_is_said(job: FtJob) -> None:
    start(job, 10)
    end(job)
    start(job, 14, "--batch", "16")
    assert end(job)["consumed"] == 80 + 4 * 16
    assert "a step takes 16 samples now, 8 when it was saved: the data goes on at the exact sample" in job.log(0, 0)
    job.assert_clean()

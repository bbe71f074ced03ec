"""MindSpore jobs that are killed end as undisturbed ones, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.framework_results import logs
from tests.support.harness import FtJob
from tests.support.mindspore_jobs import left, start

pytestmark = pytest.mark.long

Undisturbed = Callable[[str], dict[str, object]]

STORIES = [
    pytest.param("graph", "step 0 5; step 0 20", id="in a step"),
    pytest.param("graph+decay+noise", "epoch_end 0 1; epoch_end 0 2", id="at the end of an epoch"),
    pytest.param("pynative+functional+fit", "eval 0 1; begin 0 12; train_end 0 0", id="op by op, in an evaluation"),
    pytest.param("pynative", "step 0 8; step 0 9", id="op by op", marks=pytest.mark.slow),
    pytest.param("graph+augment+noise", "step 0 1; step 0 24", id="random data", marks=pytest.mark.slow),
    pytest.param("graph+python", "step 0 5; step 0 20", id="random data in Python", marks=pytest.mark.slow),
]


@pytest.mark.exact("MindSpore", "graph and PyNative mode on a CPU", "random data", "the lines of ModelArts")
@pytest.mark.parametrize(("style", "faults"), STORIES)
def test_killed_and_as_undisturbed(style: str, faults: str, job: FtJob, undisturbed: Undisturbed) -> None:
    """Taken out: without set_init_step() in model_wrapping.py the batches of the first epoch come again."""
    start(job, style, faults=faults)
    assert job.wait(120) == 0, job.stderr + logs(job)
    assert [line.rpartition(" ")[0] for line in job.fired()] == [one.strip() for one in faults.split(";")]
    assert left(job.out) == undisturbed(style)
    assert [event["source"] for event in job.events("resumed")[1:]] == ["memory"] * len(job.fired())
    assert ("not exact" in logs(job)) == ("python" in style)
    job.assert_clean()


def test_from_storage(job: FtJob, undisturbed: Undisturbed) -> None:
    """The snapshots in memory are lost with the rank; the next one is killed before its first step."""
    start(job, "graph", "--storage-interval", "3", faults="lost 0 12; begin 0 *")
    assert job.wait(120) == 0, job.stderr + logs(job)
    assert job.fired() == ["lost 0 12 0", "begin 0 * 1"]
    assert [event["source"] for event in job.events("resumed")[1:]] == ["storage", "memory"]
    assert left(job.out) == undisturbed("graph")
    job.assert_clean()


def test_a_frozen_rank_is_replaced(job: FtJob, undisturbed: Undisturbed) -> None:
    start(job, "graph", "--hang-timeout", "5s", "--startup-timeout", "100s", faults="step 0 9 freeze")
    assert job.wait(120) == 0, job.stderr + logs(job)
    assert job.fired() == ["step 0 9 freeze 0"]
    assert [incident["kind"] for incident in job.events("incident")] == ["hang"]
    assert left(job.out) == undisturbed("graph")
    job.assert_clean()


def test_an_unseeded_script_has_each_sample_once_an_epoch(job: FtJob) -> None:
    """Taken out: without DataSeed the order is another one after the resume."""
    start(job, "graph+unseeded", faults="step 0 5; step 0 20")
    assert job.wait(120) == 0, job.stderr + logs(job)
    assert len(job.fired()) == 2
    had: dict[int, set[str]] = {}
    for line in (job.out / "samples").read_text().splitlines():
        step, sample = line.split()
        had.setdefault((int(step) - 1) // 8, set()).add(sample)
    assert [len(samples) for samples in had.values()] == [32, 32, 32]
    left(job.out)  # each step that was made twice was made alike
    job.assert_clean()

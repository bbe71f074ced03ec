"""Lightning jobs whose ranks are killed end as undisturbed ones, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.adapters.versions import EMA
from tests.support.framework_results import logs
from tests.support.harness import FtJob
from tests.support.lightning_jobs import left, start

pytestmark = pytest.mark.long

Undisturbed = Callable[[str, int], dict[str, object]]

STORIES = [
    pytest.param("own+noise", 1, "step 0 5; step 0 20; step 0 21", id="generators that the data holds"),
    pytest.param("noise+workers", 2, "step 1 5; step 0 5; step 1 17", id="in a step, twice in it, in the last one"),
    pytest.param(
        "interval+plateau+metric+noise", 2, "validation 1 10; step 0 15", id="in validation", marks=pytest.mark.slow
    ),
    pytest.param(
        "accumulate+ema+interval+module+noise",
        1,
        "epoch_end 0 0; saving 0 8; step 0 35",
        id="accumulation",
        marks=EMA,
    ),
    pytest.param("metric+ema", 2, "train_end 0 0; train_end 1 0", id="behind the loops", marks=[pytest.mark.slow, EMA]),
    pytest.param(
        "accumulate+interval+module+noise", 1, "epoch_end 0 0; step 0 35", id="no EMA", marks=pytest.mark.slow
    ),
    pytest.param(
        "manual+noise", 1, "step 0 5; epoch_end 0 1; step 0 30", id="several optimizers", marks=pytest.mark.slow
    ),
    pytest.param("stream", 1, "step 0 17; step 0 24", id="loader without a length", marks=pytest.mark.slow),
    pytest.param("early+metric", 1, "step 0 13; step 0 23", id="early stopping", marks=pytest.mark.slow),
    pytest.param("twice", 1, "step 0 20; train_end 0 0", id="two fits", marks=pytest.mark.slow),
    pytest.param("swa+noise", 2, "step 1 9; step 1 20; train_end 0 0", id="weight averaging"),
    pytest.param(
        "swa+interval+noise", 1, "validation 0 20; step 0 35; step 0 47", id="and batch norm", marks=pytest.mark.slow
    ),
    pytest.param(
        "swa+plain+noise",
        1,
        "step 0 13; step 0 30; train_end 0 0",
        id="averaging, no batch norm",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        "bf16+clip+fraction+noise", 2, "step 1 4; validation 0 14; step 1 16", id="bf16", marks=pytest.mark.slow
    ),
    pytest.param("fp16+clip+noise", 1, "step 0 9; step 0 20; step 0 30", id="a scaler", marks=pytest.mark.slow),
]


@pytest.mark.slow
@pytest.mark.exact(
    "Lightning",
    "accumulation",
    "validation in an epoch",
    "loader workers",
    "generators that the data holds",
    "several optimizers",
    "manual optimization",
    "EMA",
    "StochasticWeightAveraging",
    "bf16-mixed",
    "a GradScaler",
    "gradient clipping",
    "early stopping",
    "ModelCheckpoint beside it",
    "several ranks",
)
@pytest.mark.parametrize(("style", "ranks", "faults"), STORIES)
def test_killed_and_as_undisturbed(style: str, ranks: int, faults: str, job: FtJob, undisturbed: Undisturbed) -> None:
    """Taken out: without Loops._go_to_batch() the first batches of an epoch come twice, and all stories fail.

    Without swa._put_scheduler_back() the learning rate of weight averaging is another one.
    """
    start(job, style, ranks=ranks, faults=faults)
    assert job.wait() == 0, job.stderr + logs(job)
    assert [line.rpartition(" ")[0] for line in job.fired()] == [one.strip() for one in faults.split(";")]
    assert left(job.out) == undisturbed(style, ranks)
    assert "is not saved" not in logs(job), "a line speaks of an exact run as of one that is not"
    assert "not exact" not in logs(job)
    job.assert_clean()


@pytest.mark.slow
def test_batches_that_cannot_be_made_again_are_told(job: FtJob) -> None:
    start(job, "hidden", faults="step 0 20")
    assert job.wait() == 0, job.stderr + logs(job)
    assert job.fired() == ["step 0 20 0"]
    assert logs(job).count("are not those that it had here before") == 1
    job.assert_clean()


@pytest.mark.slow
def test_from_storage(job: FtJob, undisturbed: Undisturbed) -> None:
    """The snapshots in memory are lost with the first rank to be killed."""
    start(job, "noise+interval", "--storage-interval", "3", faults="lost 0 20")
    assert job.wait() == 0, job.stderr + logs(job)
    assert job.fired() == ["lost 0 20 0"]
    assert [event["source"] for event in job.events("resumed") if event["source"]] == ["storage"]
    assert left(job.out) == undisturbed("noise+interval", 1)
    job.assert_clean()


@pytest.mark.slow
@pytest.mark.exact("Lightning", "several trainings")
@pytest.mark.parametrize(
    ("ranks", "faults"),
    [
        (1, "step 0 1020"),
        pytest.param(2, "step 1 1000; step 0 1009; step 1 1017", marks=pytest.mark.slow),
        pytest.param(1, "train_end 0 0; step 0 1003", marks=pytest.mark.slow),
        pytest.param(1, "step 0 9; step 0 1030; lost 0 1033", marks=pytest.mark.slow),
    ],
)
def test_a_second_fit_goes_on_behind_the_end_of_the_first(
    ranks: int, faults: str, job: FtJob, undisturbed: Undisturbed
) -> None:
    """Taken out: without `is_complete` nothing of the second one is saved."""
    start(job, "twice", "--storage-interval", "5", "--keep", "1", ranks=ranks, faults=faults)
    assert job.wait() == 0, job.stderr + logs(job)
    assert [line.rpartition(" ")[0] for line in job.fired()] == [one.strip() for one in faults.split(";")]
    assert left(job.out) == undisturbed("twice", ranks)
    if "step 0 10" in faults:
        assert "training 1 of this process has ended at step" in logs(job)
    job.assert_clean()


@pytest.mark.slow
def test_an_unseeded_script_has_each_sample_once_an_epoch(job: FtJob) -> None:
    """Taken out: without the random numbers of the start its order is another one after the resume."""
    start(job, "unseeded", faults="step 0 7; step 0 20")
    assert job.wait() == 0, job.stderr + logs(job)
    assert len(job.fired()) == 2
    had: dict[int, list[str]] = {}
    for line in (job.out / "samples_0").read_text().splitlines():
        step, sample = line.split()
        had.setdefault(int(step) // 12, []).append(sample)
    assert [len(samples) for samples in had.values()] == [48, 48, 48]
    assert all(len(set(samples)) == 48 for samples in had.values())

"""DeepSpeed's ranks are killed, and end as undisturbed ones, bit for bit."""

from __future__ import annotations

import signal

import pytest
from tests.support.framework_results import left, logs, prepare_second_run
from tests.support.harness import JOBS, FtJob

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed (make deepspeed)")
pytestmark = pytest.mark.long


def start(job: FtJob, style: str, ranks: int, faults: str = "") -> None:
    env = {"FAULT": faults, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    options = ("--warm", "--preload", "deepspeed", "--backoff-first", "0.05s", "--backoff-max", "0.1s")
    job.start(*options, script=JOBS / "deepspeed_zero.py", args=(str(job.out), style), ranks=ranks, env=env)


def run(job: FtJob, style: str, ranks: int, faults: str = "") -> int:
    start(job, style, ranks, faults)
    return job.wait(150)


@pytest.mark.exact("DeepSpeed", "ZeRO 0, 1, 2 and 3", "BF16", "accumulation", "offload to memory", "several ranks")
@pytest.mark.parametrize(
    ("style", "ranks", "faults"),
    [
        pytest.param("zero0+accumulate", 2, "step 1 3; step 0 9", marks=pytest.mark.slow),
        pytest.param("zero0+bf16", 2, "step 1 3; step 0 9", marks=pytest.mark.slow),
        pytest.param("zero1+bf16+groups", 2, "step 1 3; step 0 4", marks=pytest.mark.slow),
        pytest.param("zero1", 1, "step 0 3; step 0 4", marks=pytest.mark.slow),
        ("zero2+bf16+accumulate+groups", 2, "step 1 3; step 0 4"),
        pytest.param("zero3+accumulate+groups", 2, "step 1 3; step 0 4", marks=pytest.mark.slow),
        pytest.param("zero3+bf16+frozen", 2, "step 1 3; step 0 9", marks=pytest.mark.slow),
        pytest.param("zero1+bf16+offload", 2, "step 1 3; step 0 9", marks=pytest.mark.slow),
        pytest.param("zero2+bf16+offload+accumulate+groups", 2, "step 1 3; step 0 9", marks=pytest.mark.slow),
        pytest.param("zero3+offload+accumulate", 2, "step 1 3; step 0 9", marks=pytest.mark.slow),
        pytest.param("zero3+bf16+offload+parameters", 2, "step 1 3; step 0 9", marks=pytest.mark.slow),
    ],
)
def test_killed_and_as_undisturbed(style: str, ranks: int, faults: str, job: FtJob) -> None:
    """Taken out: without the engine's counts its scheduler and its steps are others."""
    assert run(job, f"{style}+plain", ranks) == 0, job.stderr + logs(job)
    calm = left(job.out)
    prepare_second_run(job)
    assert run(job, style, ranks, faults) == 0, job.stderr + logs(job)
    assert [line.rpartition(" ")[0] for line in job.fired()] == [one.strip() for one in faults.split(";")]
    assert left(job.out) == calm
    assert "not exact" not in logs(job)
    assert "is not saved" not in logs(job)
    job.assert_clean()


@pytest.mark.slow
def test_stopped_and_started_again(job: FtJob) -> None:
    assert run(job, "zero2+accumulate+plain", 2) == 0, job.stderr + logs(job)
    calm = left(job.out)
    prepare_second_run(job)
    start(job, "zero2+accumulate+slow", 2)
    job.wait_step(4)
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.wait() == 75, job.stderr + logs(job)
    assert run(job, "zero2+accumulate", 2) == 0, job.stderr + logs(job)
    assert left(job.out) == calm
    job.assert_clean()


@pytest.mark.slow
@pytest.mark.refused("DeepSpeed", "offload to disks", "experts")
def test_what_cannot_be_kept_is_refused(job: FtJob) -> None:
    assert run(job, "zero2+accumulate+micro", 1) == 1
    assert "cannot save: the engine has had 1 of 3 micro batches of a step" in logs(job)
    assert len(job.events("attempt_started")) == 1


@pytest.mark.slow
def test_another_number_of_shares_is_refused(job: FtJob) -> None:
    start(job, "zero1+slow", 2)
    job.wait_step(3)
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.wait() == 75, job.stderr + logs(job)
    assert run(job, "zero1", 1) == 1
    said = "the engine's optimizer is DeepSpeedZeroOptimizer with 1 shares now, and was DeepSpeedZeroOptimizer with 2"
    assert said in logs(job)

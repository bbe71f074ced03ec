"""Ranks of torchtitan's Trainer are killed, and end as undisturbed ones, bit for bit."""

from __future__ import annotations

import signal

import pytest
from tests.support.framework_results import left, logs, prepare_second_run
from tests.support.harness import FtJob
from tests.support.titan_jobs import run, start

pytest.importorskip("torchtitan.components.checkpointer", reason="torchtitan is not installed (make torchtitan)")
pytestmark = pytest.mark.long

WORKERS = "torchdata saves no random numbers of a loader's workers"


@pytest.mark.exact("torchtitan", "FSDP2 and HSDP", "tensor parallel", "BF16")
@pytest.mark.exact("torchtitan", "accumulation", "validation", "loader workers")
@pytest.mark.parametrize(
    ("style", "ranks", "faults"),
    [
        ("fsdp+validate+accumulate", 2, "step 1 4; validate 0 6; step 1 10"),
        ("tp+bf16+own", 2, "step 0 4; save 1 8; save 0 10"),
        pytest.param("workers+validate", 1, "step 0 2; step 0 7", marks=pytest.mark.slow),
        pytest.param("workers+own+fsdp", 2, "step 1 7; step 0 10", marks=pytest.mark.slow),
        pytest.param("tp+full_dtensor", 2, "step 1 5", marks=pytest.mark.slow),
        pytest.param("tp+fsdp+validate", 4, "step 2 5; step 1 9", marks=pytest.mark.slow),
        pytest.param("hsdp+fsdp+bf16", 4, "step 3 4; step 0 10", marks=pytest.mark.slow),
        pytest.param("override+fsdp", 2, "step 1 5", marks=pytest.mark.slow),
        pytest.param("override+own+fsdp", 2, "step 1 6; save 1 10", marks=pytest.mark.slow),
        pytest.param("fsdp+ends", 2, "step 0 3", marks=pytest.mark.slow),
    ],
)
def test_killed_and_as_undisturbed(style: str, ranks: int, faults: str, job: FtJob) -> None:
    """Taken out: with the boundary in save(), before validation, or without restore_rng(), later losses are others; so
    are they without the loader's position. Without reshard() behind validation the job cannot resume.
    """
    assert run(job, f"{style.replace('override+', '')}+plain", ranks) == 0, job.stderr + logs(job)
    calm = left(job.out)
    assert len(calm) == 2 * ranks
    prepare_second_run(job)
    assert run(job, style, ranks, faults) == 0, job.stderr + logs(job)
    assert [line.rpartition(" ")[0] for line in job.fired()] == [one.strip() for one in faults.split(";")]
    assert left(job.out) == calm
    assert logs(job).count("not exact") == logs(job).count(WORKERS), "it is said where the workers might draw"
    assert (WORKERS in logs(job)) == ("workers" in style)
    assert "is not saved" not in logs(job)
    assert ("the script ends after step 8 without job.finish()" in logs(job)) == ("ends" in style)
    job.assert_clean()


def test_stopped_and_started_again(job: FtJob) -> None:
    assert run(job, "fsdp+plain", 2) == 0, job.stderr + logs(job)
    calm = left(job.out)
    prepare_second_run(job)
    start(job, "fsdp+slow", 2)
    job.wait_step(3)
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.wait() == 75, job.stderr + logs(job)
    assert not list(job.out.glob("final_*"))
    assert run(job, "fsdp", 2) == 0, job.stderr + logs(job)
    assert left(job.out) == calm
    job.assert_clean()


@pytest.mark.slow
@pytest.mark.refused("torchtitan", "another way to share the work")
def test_another_way_to_share_the_work_is_refused(job: FtJob) -> None:
    start(job, "fsdp+slow", 2)
    job.wait_step(3)
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.wait() == 75, job.stderr + logs(job)
    assert run(job, "tp", 2) == 1
    assert "cannot resume: the ranks share the work as dp_replicate=1, dp_shard=1, cp=1, tp=2" in logs(job)

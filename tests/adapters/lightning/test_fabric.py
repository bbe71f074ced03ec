"""Scripts with Fabric whose ranks are killed, or told to stop, end as undisturbed ones, bit for bit."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.support.framework_results import FINDS_JOBS, logs, prepare_second_run
from tests.support.harness import JOBS, FtJob
from tests.support.lightning_jobs import left

pytestmark = pytest.mark.long

SCRIPT = JOBS / "fabric_loop.py"
OPTIONS = (
    *("--warm", "--preload", "lightning.fabric,torch._dynamo,ftlaunch_hooks.job.attaching"),
    *("--backoff-first", "0.05s", "--backoff-max", "0.1s"),
)


def start(job: FtJob, style: str, ranks: int = 1, faults: str = "", script: Path = SCRIPT) -> None:
    env = {"FAULT": faults, "OMP_NUM_THREADS": "1", **FINDS_JOBS}
    job.start(*OPTIONS, script=script, args=(str(job.out), style), ranks=ranks, env=env)


def undisturbed(job: FtJob, style: str, ranks: int) -> dict[str, object]:
    """What a job leaves; `job` is another one afterwards, with folders of its own."""
    start(job, style, ranks)
    assert job.wait() == 0, job.stderr + logs(job)
    calm = left(job.out)
    assert {f"final_{rank}" for rank in range(ranks)} | {"csv/version_0/metrics.csv"} <= calm.keys()
    prepare_second_run(job)
    return calm


@pytest.mark.slow
@pytest.mark.exact(
    "Fabric",
    "accumulation",
    "evaluation",
    "loader workers",
    "samplers with generators",
    "generators that the data holds",
    "bf16-mixed",
    "a GradScaler",
    "gradient clipping",
    "several ranks",
)
@pytest.mark.parametrize(
    ("style", "ranks", "faults"),
    [
        ("own+noise", 1, "step 0 5; step 0 20; step 0 21"),
        ("noise+workers+bf16+clip", 2, "step 1 3; evaluation 0 1; step 0 16"),
        pytest.param("noise+weighted+accumulate", 1, "step 0 5; step 0 11; step 0 20", marks=pytest.mark.slow),
        pytest.param("noise+weighted+accumulate", 2, "step 1 4; evaluation 1 0; step 0 14", marks=pytest.mark.slow),
        pytest.param("fp16+clip+noise", 1, "step 0 9; evaluation 0 1; step 0 32", marks=pytest.mark.slow),
        pytest.param("stream+noise+workers", 1, "step 0 5; evaluation 0 0; step 0 20", marks=pytest.mark.slow),
        pytest.param("short+noise", 1, "step 0 7; evaluation 0 0; step 0 12", marks=pytest.mark.slow),
        pytest.param("steps+workers+noise", 1, "step 0 10; step 0 11; step 0 32", marks=pytest.mark.slow),
    ],
)
def test_killed_and_as_undisturbed(style: str, ranks: int, faults: str, job: FtJob) -> None:
    """Taken out: without FabricLoader._go_to() the batches of the pass come twice, and all stories fail."""
    calm = undisturbed(job, style, ranks)
    start(job, style, ranks, faults)
    assert job.wait() == 0, job.stderr + logs(job)
    assert [line.rpartition(" ")[0] for line in job.fired()] == [one.strip() for one in faults.split(";")]
    assert left(job.out) == calm
    for line in ("not exact", "is not saved", "asks neither", "ends an epoch too early"):
        assert line not in logs(job), f"a line says {line!r} of an exact run"
    job.assert_clean()


@pytest.mark.slow
def test_stopped_and_started_again(job: FtJob) -> None:
    calm = undisturbed(job, "slow+noise", 2)
    start(job, "slow+noise", 2)
    job.wait_step(4)
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.wait() == 75, job.stderr + logs(job)
    start(job, "slow+noise", 2)
    assert job.wait() == 0, job.stderr + logs(job)
    [resumed] = [event for event in job.events("resumed") if event["source"]]
    assert 4 <= resumed["step"] < 33
    assert left(job.out) == calm
    job.assert_clean()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("style", "fault", "sentence"),
    [
        ("blind", "evaluation 0 0", "the pass over the loader was complete at step 11"),
        ("counts", "step 0 14", "the script counts the batches of a pass with enumerate()"),
        ("hidden", "step 0 20", "are not those that it had here before"),
    ],
)
def test_a_loop_that_is_not_exact_is_told(style: str, fault: str, sentence: str, job: FtJob) -> None:
    """One ends an epoch too early, one multiplies batches by other numbers, one has other batches."""
    start(job, style, faults=fault)
    assert job.wait() == 0, job.stderr + logs(job)
    assert job.fired() == [f"{fault} 0"]
    assert logs(job).count(sentence) == 1


@pytest.mark.refused("Fabric", "a loader without `setup_dataloaders()`")
@pytest.mark.parametrize(
    ("style", "ranks", "before", "after", "sentence"),
    [
        ("refused", 2, "", "", "cannot attach: the Fabric has a world size of 1, and the job has 2 ranks"),
        pytest.param(
            "plain", 1, "loader=loader", "loader=make_loader()", "cannot attach: `loader` is a DataLoader as it was",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_refused_at_once(
    style: str, ranks: int, before: str, after: str, sentence: str, job: FtJob, tmp_path: Path
) -> None:
    script = tmp_path / "refused.py"
    script.write_text(SCRIPT.read_text().replace(before, after, 1) if before else SCRIPT.read_text())
    start(job, style, ranks, script=script)
    assert job.wait() == 1
    assert sentence in logs(job)
    assert len(job.events("attempt_started")) == 1
    job.assert_clean()

"""Scripts with Accelerate whose ranks are killed end as undisturbed ones, bit for bit."""

from __future__ import annotations

import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.support.framework_results import FINDS_JOBS, left, logs, prepare_second_run
from tests.support.harness import JOBS, FtJob
from tests.support.packages import require

require("accelerate", reason="Accelerate is not installed (pip install accelerate)")
pytestmark = pytest.mark.long

OPTIONS = (
    *("--warm", "--preload", "accelerate,torch._dynamo,ftlaunch_hooks.job.attaching"),
    *("--backoff-first", "0.05s", "--backoff-max", "0.1s"),
)


def run(job: FtJob, style: str, ranks: int, faults: str = "", script: Path = JOBS / "accelerated.py") -> int:
    job.start(*OPTIONS, script=script, args=(str(job.out), style), ranks=ranks, env={"FAULT": faults, **FINDS_JOBS})
    return job.wait()


NO_ENGINE = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed (make deepspeed)")


@pytest.mark.exact(
    "Accelerate",
    "generators that the data holds",
    "accumulation",
    "evaluation",
    "loader workers",
    "several ranks",
    "FSDP2",
    "DeepSpeed",
)
@pytest.mark.parametrize(
    ("style", "ranks", "faults"),
    [
        pytest.param("accumulate+noise", 1, "step 0 5; step 0 20; evaluation 0 1", marks=pytest.mark.slow),
        pytest.param("own+noise", 1, "step 0 5; step 0 20; step 0 21", marks=pytest.mark.slow),
        pytest.param("accumulate+noise+workers", 2, "step 1 3; evaluation 0 1; step 0 17", marks=pytest.mark.slow),
        pytest.param("noise", 2, "step 1 5; step 0 6", marks=pytest.mark.slow),
        pytest.param("steps+workers", 1, "step 0 10; step 0 11; step 0 32", marks=pytest.mark.slow),
        ("fsdp+accumulate+noise", 2, "step 1 5; evaluation 0 1; step 0 17"),
        pytest.param("fsdp+workers+noise", 2, "step 0 4; step 1 6", marks=pytest.mark.slow),
        pytest.param("zero2+accumulate+noise", 2, "step 1 5; evaluation 0 1; step 0 17", marks=NO_ENGINE),
        pytest.param("zero1+steps+noise", 2, "step 0 4; step 1 6", marks=[NO_ENGINE, pytest.mark.slow]),
        pytest.param("zero3+accumulate+workers", 2, "step 1 5; step 0 12", marks=[NO_ENGINE, pytest.mark.slow]),
    ],
)
def test_killed_and_as_undisturbed(style: str, ranks: int, faults: str, job: FtJob) -> None:
    """Taken out: without `ahead_at` the noise of the batch that was read ahead is another; without skip_batches all."""
    assert run(job, style, ranks) == 0, job.stderr + logs(job)
    calm = left(job.out)
    prepare_second_run(job)
    assert run(job, style, ranks, faults) == 0, job.stderr + logs(job)
    assert [line.rpartition(" ")[0] for line in job.fired()] == [one.strip() for one in faults.split(";")]
    assert left(job.out) == calm
    assert "not exact" not in logs(job)
    assert "is not saved" not in logs(job)
    assert "asks neither" not in logs(job)
    job.assert_clean()


@pytest.mark.slow
def test_batches_that_cannot_be_made_again_are_told(job: FtJob) -> None:
    """In the second epoch: in the first one a data set that is made anew begins where it began."""
    assert run(job, "hidden", 1, "step 0 20") == 0, job.stderr + logs(job)
    assert job.fired() == ["step 0 20 0"]
    assert logs(job).count("are not those that it had here before") == 1


@pytest.mark.slow
def test_stopped_and_started_again(job: FtJob) -> None:
    assert run(job, "slow+noise", 2) == 0, job.stderr + logs(job)
    calm = left(job.out)
    prepare_second_run(job)
    job.start(*OPTIONS, script=JOBS / "accelerated.py", args=(str(job.out), "slow+noise"))
    job.wait_step(4)
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.wait() == 75, job.stderr + logs(job)
    assert run(job, "slow+noise", 2) == 0, job.stderr + logs(job)
    assert [event["source"] for event in job.events("resumed") if event["source"]] in (["memory"], ["storage"])
    assert left(job.out) == calm
    job.assert_clean()


@pytest.mark.slow
def test_a_loop_that_begins_at_its_first_epoch_is_told(job: FtJob, tmp_path: Path) -> None:
    """Before anything is lost."""
    script = tmp_path / "blind.py"
    script.write_text((JOBS / "accelerated.py").read_text().replace("range(loader.iteration, EPOCHS)", "range(EPOCHS)"))
    assert run(job, "plain", 1, script=script) == 0, job.stderr + logs(job)
    assert logs(job).count("begin it at `loader.iteration`") == 1


@pytest.mark.slow
def test_epochs_counted_from_the_step_are_told(job: FtJob, tmp_path: Path) -> None:
    """Killed behind an epoch's last step, such a loop ends an epoch too early."""
    script = tmp_path / "counted.py"
    text = (JOBS / "accelerated.py").read_text()
    script.write_text(text.replace("range(loader.iteration, EPOCHS)", "range(job.step // 11, EPOCHS)"))
    assert run(job, "plain", 1, "evaluation 0 0", script=script) == 0, job.stderr + logs(job)
    assert job.fired() == ["evaluation 0 0 0"]
    assert logs(job).count("the pass over the loader was complete at step 11") == 1


@pytest.mark.refused("Accelerate", "`dispatch_batches`")
def test_what_cannot_be_kept_is_refused(job: FtJob, tmp_path: Path) -> None:
    script = tmp_path / "dispatches.py"
    text = (JOBS / "accelerated.py").read_text()
    dispatching = "= Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=True), "
    text = text.replace("= Accelerator(", dispatching).replace(
        "import Accelerator,", "import Accelerator, DataLoaderConfiguration,"
    )
    assert text.count("DataLoaderConfiguration") == 2
    script.write_text(text)
    assert run(job, "plain", 1, script=script) == 1
    assert "cannot attach: the position of a DataLoaderDispatcher is not saved" in logs(job)
    assert len(job.events("attempt_started")) == 1

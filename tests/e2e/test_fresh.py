"""--fresh in a command that a scheduler repeats: the first run begins anew, later ones go on until the job is over."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.e2e.test_alone import AloneJob
from tests.support.harness import FtJob

GOES_ON = "--fresh is for the first run of a command: this one began anew on "


def start(job: FtJob, steps: int = 40, *options: str) -> None:
    args = ("--out", str(job.out), "--steps", str(steps), "--step-time", "0.03")
    job.start("--fresh", *options, args=args, ranks=1)


def sources(job: FtJob) -> list[tuple[str | None, int]]:
    return [(event["source"], event["step"]) for event in job.events("resumed")]


@pytest.mark.slow
def test_a_stopped_command_goes_on_and_one_that_is_done_begins_anew(job: FtJob) -> None:
    start(job)
    job.wait_step(7)
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.wait() == 75, job.stderr
    stopped = job.events("job_stopped")[-1]["step"]
    assert stopped >= 7
    assert f"the same command goes on from step {stopped} (exit code 75)" in job.stderr

    start(job)
    assert job.wait() == 0, job.stderr
    assert GOES_ON in job.stderr
    assert sources(job) == [(None, 0), ("storage", stopped)]
    assert len((job.out / "loss_0.csv").read_text().splitlines()) == 40, "no step was made twice"

    start(job)
    assert job.wait() == 0, job.stderr
    assert GOES_ON not in job.stderr
    assert "--fresh: earlier checkpoints are now in " in job.stderr
    assert sources(job)[2:] == [(None, 0)]
    job.assert_clean()


@pytest.mark.long
def test_a_command_that_was_cut_off_goes_on_from_memory(job: FtJob) -> None:
    start(job, 60)
    job.wait_step(7)
    job.supervisor.kill()
    job.wait()
    start(job, 60)
    assert job.wait() == 0, job.stderr
    assert GOES_ON in job.stderr
    (first, (source, step)) = sources(job)
    assert first == (None, 0)
    assert source == "memory"
    assert step >= 7
    job.assert_clean()


@pytest.mark.long
def test_a_command_that_was_given_up_begins_anew(job: FtJob) -> None:
    job.start("--fresh", "--max-restarts", "0", args=("--out", str(job.out)), env={"FAULT": "exception 0 5"}, ranks=1)
    assert job.wait() == 1, job.stderr
    assert job.fired() == ["exception 0 0"]
    job.start("--fresh", "--max-restarts", "0", args=("--out", str(job.out)), ranks=1)
    assert job.wait() == 0, job.stderr
    assert GOES_ON not in job.stderr
    assert sources(job) == [(None, 0), (None, 0)]
    job.assert_clean()


@pytest.mark.slow
def test_a_start_that_begins_anew_on_request(job: FtJob) -> None:
    """The sentence says what to remove."""
    start(job)
    job.wait_step(7)
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.wait() == 75, job.stderr
    (job.run_dir / "checkpoints" / "fresh.json").unlink()
    start(job)
    assert job.wait() == 0, job.stderr
    assert sources(job) == [(None, 0), (None, 0)]
    job.assert_clean()


@pytest.mark.slow
def test_without_a_supervisor_as_well(tmp_path: Path) -> None:
    alone = AloneJob(tmp_path)
    slowly = ("--steps", "40", "--step-time", "0.03")

    def said() -> str:
        return (alone.home / "stderr").read_text()

    process = alone.start(*slowly, FTLAUNCH_FRESH="1", FTLAUNCH_VERIFY_RESUME="off")
    alone.wait_loss(7)
    process.terminate()
    assert process.wait(60) == 75, said()
    stopped = alone.newest()

    assert alone.start(*slowly, FTLAUNCH_FRESH="1", FTLAUNCH_VERIFY_RESUME="off").wait(60) == 0, said()
    assert GOES_ON in said()
    assert len(alone.losses()) == 40, "no step was made twice"
    assert stopped >= 7

    assert alone.start(*slowly, FTLAUNCH_FRESH="1", FTLAUNCH_VERIFY_RESUME="off").wait(60) == 0, said()
    assert GOES_ON not in said()
    assert "FTLAUNCH_FRESH=1: earlier checkpoints are now in " in said()
    assert len(alone.losses()) == 80, "all steps were made again"
    alone.assert_clean()


@pytest.mark.slow
def test_torchrun_that_starts_ranks_again_does_not_begin_anew(tmp_path: Path) -> None:
    """torchrun repeats the command of the ranks, with its environment."""
    alone = AloneJob(tmp_path)
    process = alone.start(
        "--steps", "30", "--step-time", "0.05", ranks=1, PET_MAX_RESTARTS="1", FAULT="sigkill 0 20",
        FTLAUNCH_FRESH="1", FTLAUNCH_STORAGE_INTERVAL="5", FTLAUNCH_VERIFY_RESUME="off",
    )  # fmt: skip
    assert process.wait(120) == 0, (alone.home / "stderr").read_text()
    assert (alone.out / "fired").read_text().splitlines() == ["sigkill 0 0"]
    assert GOES_ON in (alone.home / "stderr").read_text()
    assert len(alone.losses()) < 20 + 30, "it went on from a checkpoint"
    assert alone.newest() == 30
    alone.assert_clean()

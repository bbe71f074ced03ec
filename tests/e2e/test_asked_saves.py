"""What a script asks for by a call is what is saved: exactly these steps, as many of them, where no option says so."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest
from tests.support.framework_results import logs
from tests.support.harness import JOBS, FtJob
from tests.support.waiting import wait_for

from ftlaunch_contract.checkpoint import layout

pytestmark = pytest.mark.long

SCRIPT = JOBS / "asks.py"


def start(
    job: FtJob, *options: str, ranks: int = 2, steps: int = 23, ahead: int = 0, env: dict[str, str] | None = None
) -> None:
    args = ("--out", str(job.out), str(steps), "5", "2", "3", str(ahead))
    options = ("--backoff-first", "0.05s", *options)
    job.start(*options, script=SCRIPT, args=args, ranks=ranks, env=env, script_asks=True)


def committed(job: FtJob) -> list[tuple[int, str]]:
    return [(event["step"], event["why"]) for event in job.events("checkpoint_committed")]


def kept(job: FtJob) -> list[int]:
    return sorted(step for step, _ in layout.list_iterations(job.run_dir / "checkpoints"))


def given(job: FtJob) -> object:
    return ast.literal_eval((job.out / "given").read_text())


AT_EACH = [(5, "interval"), (10, "interval"), (15, "interval"), (20, "interval"), (23, "end")]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_exactly_these_steps_and_so_many(ranks: int, job: FtJob) -> None:
    """Steps of a millisecond, which a save takes many of.

    Taken out: without StepSchedule.await_saver() the saver is asked for some of them alone; where the call asks by
    job.save() in their place the steps are 8, 13 and 18.
    """
    start(job, ranks=ranks)
    assert job.wait() == 0, job.stderr + logs(job)
    assert committed(job) == AT_EACH
    assert kept(job) == [20, 23]
    assert {event["keep"] for event in job.events("checkpoint_deleted")} == {2}
    assert given(job) == {}
    job.assert_clean()


def test_a_killed_rank_goes_on_from_a_snapshot_that_was_asked_for(job: FtJob) -> None:
    """Snapshots are those of the steps 3 and 6 and of step 5, which is saved; the interval of an option is `auto`."""
    start(job, env={"FAULT": "1 8", "AWAITED": str(layout.iteration_dir(job.run_dir / "checkpoints", 5))})
    assert job.wait() == 0, job.stderr + logs(job)
    assert job.fired() == ["killed 1 0"]
    (resumed,) = job.events("resumed")[1:]
    assert (resumed["step"], resumed["source"]) == (6, "memory")
    assert committed(job) == AT_EACH
    assert kept(job) == [20, 23]
    job.assert_clean()


@pytest.mark.slow
def test_training_waits_for_storage_and_says_so(job: FtJob) -> None:
    start(job, "--storage-bandwidth", "25KB/s", steps=16)
    assert job.wait(120) == 0, job.stderr + logs(job)
    assert committed(job) == [(5, "interval"), (10, "interval"), (15, "interval"), (16, "end")]
    assert logs(job).count("step 10 has waited ") == 1
    assert logs(job).count("has waited ") == 1
    job.assert_clean()


def test_a_job_that_is_told_to_stop_does_not_wait(job: FtJob) -> None:
    """A save takes a minute, and a stop has it hurry."""
    start(job, "--storage-bandwidth", "1KB/s", steps=10_000)
    begun = job.run_dir / "checkpoints" / f"{layout.iteration_dir(job.run_dir, 5).name}{layout.INCOMPLETE}"
    wait_for(begun.exists, "the beginning of the save of step 5")
    job.wait_step(9)
    job.supervisor.terminate()
    assert job.wait(60) == 75, job.stderr + logs(job)
    assert committed(job)[0] == (5, "interval")
    assert committed(job)[-1][1] == "stop"
    job.assert_clean()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "held", "steps", "left"),
    [
        (("--keep", "4"), {"keep": "--keep 4"}, [5, 10, 15, 20, 23], [10, 15, 20, 23]),
        (("--storage-interval", "off"), {"storage_interval": "--storage-interval off"}, [23], [23]),
        (("--memory-interval", "4"), {"memory_interval": "--memory-interval 4"}, [5, 10, 15, 20, 23], [20, 23]),
    ],
)
def test_an_option_holds_in_the_place_of_the_call(
    options: tuple[str, ...], held: dict[str, str], steps: list[int], left: list[int], job: FtJob
) -> None:
    start(job, *options)
    assert job.wait() == 0, job.stderr + logs(job)
    assert [step for step, _ in committed(job)] == steps
    assert kept(job) == left
    assert given(job) == held
    job.assert_clean()


def test_multiples_are_those_of_the_scripts_count(job: FtJob) -> None:
    start(job, ahead=12)
    assert job.wait() == 0, job.stderr + logs(job)
    assert [step for step, _ in committed(job)] == [3, 8, 13, 18, 23]
    job.assert_clean()


def test_ranks_that_ask_for_different_things_are_refused(job: FtJob) -> None:
    start(job, "--max-restarts", "0", env={"OTHERWISE": "1"})
    assert job.wait() == 1, job.stderr
    assert "cannot save as asked: rank" in logs(job)
    assert committed(job) == []


@pytest.mark.parametrize(("environ", "left"), [({}, [20, 23]), ({"FTLAUNCH_KEEP": "3"}, [15, 20, 23])])
def test_without_a_supervisor(environ: dict[str, str], left: list[int], job: FtJob) -> None:
    folder = str(job.run_dir / "checkpoints")
    command = [sys.executable, SCRIPT, "--out", str(job.out), "23", "5", "2", "3"]
    env = {**os.environ, "FTLAUNCH_CHECKPOINT_DIR": folder, **environ}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False, cwd=job.home)
    assert done.returncode == 0, done.stderr
    assert [step for step in range(24) if f"saved step {step} (" in done.stderr] == [5, 10, 15, 20, 23]
    assert kept(job) == left
    assert given(job) == ({"keep": "FTLAUNCH_KEEP=3"} if environ else {})

"""Notices that one machine will be taken away, from a file and from commands that answer, fail and hang."""

from __future__ import annotations

import os

import pytest
from tests.support.harness import FtJob
from tests.support.waiting import wait_for

SLOW = ("--steps", "60", "--step-time", "0.03")
SOON = ("--preempt-every", "100ms")


def assert_stopped_and_resumed(job: FtJob, why: str) -> None:
    """The job has ended with a checkpoint, for this notice, and goes on from it without one."""
    assert job.wait() == 75, job.stderr
    (asked,) = job.events("stop_requested")
    assert asked["by"] == f"preemption notice: {why}"
    step = job.events("checkpoint_committed")[-1]["step"]
    job.start(args=("--out", str(job.out), *SLOW))
    assert job.wait() == 0, job.stderr
    assert (job.events("resumed")[-1]["source"], job.events("resumed")[-1]["step"]) == ("storage", step)
    assert sorted(job.losses()) == list(range(60))
    job.assert_clean()


@pytest.mark.slow
def test_a_file_that_appears_stops_the_job_with_a_checkpoint(job: FtJob) -> None:
    job.start("--preempt-when", "./notice", *SOON, args=("--out", str(job.out), *SLOW))
    job.wait_step(8)
    (job.home / "notice").touch()
    assert_stopped_and_resumed(job, "./notice is there")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("test -e notice", ""),
        pytest.param(
            "test -e notice || exit 7", "it ends with exit code 7, where 0 is yes and 1 is no", marks=pytest.mark.slow
        ),
        pytest.param("test -e notice || kill $$", "it was killed by SIGTERM", marks=pytest.mark.slow),
    ],
)
def test_a_command_that_ends_with_0_stops_the_job(job: FtJob, command: str, complaint: str) -> None:
    job.start("--preempt-when", command, *SOON, args=("--out", str(job.out), *SLOW))
    job.wait_step(8)
    if complaint:
        wait_for(lambda: complaint in job.stderr, complaint)
    job_stderr = job.stderr
    (job.home / "notice").touch()
    assert_stopped_and_resumed(job, f"{command} says that this machine will be taken away")
    assert job_stderr.count("cannot tell whether") == bool(complaint), "a complaint is said once"


@pytest.mark.slow
def test_a_command_that_hangs_is_ended_and_asked_again(job: FtJob) -> None:
    """The training goes on meanwhile."""
    command = "test -e asked && exit 0; touch asked; sleep 1000 & wait"
    job.start("--preempt-when", command, *SOON, args=("--out", str(job.out), "--steps", "1000", "--step-time", "0.03"))
    wait_for((job.home / "asked").exists, "the first question")
    reached = max(rank["step"] for rank in job.wait_step(8)["ranks"])
    assert job.wait() == 75, job.stderr
    assert "it gives no answer within 10 s; asking on" in job.stderr
    assert job.events("checkpoint_committed")[-1]["step"] > reached
    job.assert_clean()


def test_a_program_is_not_taken_for_a_file(job: FtJob) -> None:
    program = job.home / "ask"
    program.write_text("#!/bin/sh\nexit 1\n")
    os.chmod(program, 0o755)
    job.start("--preempt-when", str(program))
    assert job.wait() == 2
    assert "it is a program, and one word that begins with / or ./ is a file to look for" in job.stderr

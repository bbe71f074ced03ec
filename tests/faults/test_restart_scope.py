"""restart_scope: rank. Ranks that do not talk to each other are restarted one at a time, the others go on."""

from __future__ import annotations

import os
import signal

import pytest
from tests.support.harness import JOBS, FtJob
from tests.support.waiting import wait_for

pytestmark = pytest.mark.long

APART = JOBS / "apart.py"
SCOPE = ("--restart-scope", "rank", "--backoff-first", "0.1s", "--backoff-max", "0.2s")


def start(job: FtJob, fault: str, *options: str, steps: int = 60, ranks: int = 3) -> None:
    env = {"FAULT": fault, "OUT": str(job.out)}
    job.start(*SCOPE, *options, ranks=ranks, script=APART, args=(str(steps),), env=env)


def lives(job: FtJob, rank: int) -> list[list[str]]:
    """(pid, restarts it was told, attempt) of each."""
    return [line.split() for line in (job.out / f"lives_{rank}").read_text().splitlines()]


def counted(job: FtJob, rank: int) -> int:
    return int((job.out / f"count_{rank}").read_text())


@pytest.mark.parametrize("kind", ["kill", "child"])
def test_only_the_rank_that_failed_is_started_again(job: FtJob, kind: str) -> None:
    """With the scope `job` all have two lives."""
    start(job, f"{kind} 1 5")
    assert job.wait() == 0, job.stderr
    assert job.fired() == [kind]
    assert [len(lives(job, rank)) for rank in range(3)] == [1, 2, 1]
    assert [life[1:] for life in lives(job, 1)] == [["0", "0"], ["1", "0"]]
    assert [counted(job, rank) for rank in range(3)] == [60, 60, 60]
    [incident], [event] = job.events("incident"), job.events("rank_restarted")
    assert (incident["rank"], incident["kind"]) == (1, "killed")
    assert "restarting it alone now, 2 of 3 restarts left" in incident["sentence"]
    assert (event["rank"], event["restarts"], event["pid"]) == (1, 1, int(lives(job, 1)[1][0]))
    assert len(job.events("attempt_started")) == 1
    job.assert_clean()


@pytest.mark.slow
def test_a_rank_that_hangs_is_ended_and_started_again(job: FtJob) -> None:
    start(job, "hang 2 5", "--startup-timeout", "1s", "--hang-timeout", "1s", steps=400)
    assert job.wait() == 0, job.stderr
    assert job.fired() == ["hang"]
    assert [len(lives(job, rank)) for rank in range(3)] == [1, 1, 2]
    [incident] = job.events("incident")
    assert (incident["rank"], incident["kind"]) == (2, "hang")
    assert "restarting it alone" in incident["sentence"]
    job.assert_clean()


def test_the_budget_is_the_jobs(job: FtJob) -> None:
    start(job, "kill 0 5 9", "--max-restarts", "2")
    assert job.wait() == 1
    assert job.fired() == ["kill"] * 3
    assert [life[1] for life in lives(job, 0)] == ["0", "1", "2"]
    assert len(lives(job, 1)) == 1
    assert "2 of 2 restarts are used up" in job.stderr
    job.assert_clean()


def test_two_that_fail_at_once_are_both_started_again(job: FtJob) -> None:
    start(job, "none -1 -1", steps=200)
    wait_for(lambda: all((job.out / f"count_{rank}").exists() for rank in range(3)), "steps")
    pids = [int(lives(job, rank)[0][0]) for rank in (0, 2)]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert job.wait() == 0, job.stderr
    assert [len(lives(job, rank)) for rank in range(3)] == [2, 1, 2]
    assert {event["rank"] for event in job.events("incident")} == {0, 2}
    job.assert_clean()


def test_a_stop_does_not_wait_for_a_rank_that_is_to_come_back(job: FtJob) -> None:
    """In the second wait, of minutes, the job is told to stop."""
    start(job, "kill 1 5 9", "--backoff-first", "10m", "--backoff-max", "20m", steps=3000)
    wait_for(lambda: len(job.events("incident")) == 2, "the second failure")
    os.kill(job.supervisor.pid, signal.SIGTERM)
    assert job.wait() == 143, job.stderr
    assert len(lives(job, 1)) == 2
    job.assert_clean()


def test_ranks_with_hooks_are_restarted_together(job: FtJob) -> None:
    """They agree on every step: one alone would wait for ever."""
    job.start("--restart-scope", "rank", env={"FAULT": "sigkill 1 5"})
    assert job.wait() == 0, job.stderr
    assert len(job.events("attempt_started")) == 2
    assert job.events("rank_restarted") == []
    assert "restarting now" in job.events("incident")[0]["sentence"]
    job.assert_clean()

"""A rank that does not move is seen, its stacks are in its log, the laggard is named, and the job goes on."""

from __future__ import annotations

import pytest
from tests.support.harness import FtJob

LIMITS = ("--hang-timeout", "1.5s", "--grace", "3s")


@pytest.mark.parametrize("kind", ["sigstop", "spin", "gil"])
def test_hang_names_the_laggard_and_leaves_all_stacks(job: FtJob, calm: FtJob, kind: str) -> None:
    job.start(*LIMITS, env={"FAULT": f"{kind} 1 12"})
    assert job.wait() == 0, job.stderr
    assert job.fired() == [f"{kind} 1 0"]
    assert len(job.events("incident")) == 1, job.journal_text
    (incident,) = job.events("incident")
    assert (incident["kind"], incident["rank"], incident["step"]) == ("hang", 1, 12)
    for rank in (0, 1):
        log = job.log(0, rank)
        assert "--- ftlaunch: stacks of rank" in log
        assert log.count("(most recent call first)") >= 2, "stacks of all threads"
        assert "tiny.py" in log
    assert "_engine_run_backward" in job.log(0, 0)
    resumed = job.events("resumed")[-1]
    assert (resumed["source"], resumed["step"], resumed["steps_lost"]) == ("memory", 12, 0)
    assert job.losses() == calm.losses()
    assert job.final() == calm.final()
    job.assert_clean()


def test_stacks_are_taken_before_anything_is_killed(job: FtJob) -> None:
    job.start(*LIMITS, env={"FAULT": "spin 1 5"})
    assert job.wait() == 0, job.stderr
    killed = job.events("ranks_killed")[0]
    seen = job.events("hang_seen")[0]
    assert killed["ranks"] == [0, 1], "nobody died before"
    assert killed["mono"] > seen["mono"]


def test_rank_that_never_begins_to_beat(job: FtJob, calm: FtJob) -> None:
    job.start("--startup-timeout", "12s", "--grace", "1s", env={"FAULT": "never 1 -1"})
    assert job.wait() == 0, job.stderr
    assert job.fired() == ["never 1 0"]
    assert len(job.events("incident")) == 1, job.journal_text
    (incident,) = job.events("incident")
    assert (incident["kind"], incident["rank"]) == ("hang", 1)
    assert "rank 1 has not reached attach()" in incident["sentence"]
    assert "tiny.py" in job.log(0, 1), "its stacks: the hooks were imported"
    assert job.final() == calm.final()
    job.assert_clean()


def test_off_means_off(job: FtJob) -> None:
    job.start("--hang-timeout", "off", env={"FAULT": "sigstop 1 5"})
    job.wait_step(5)
    stuck = job.pids()
    job.wait_event("resumed")
    status = job.status()
    assert status is not None
    assert job.events("hang_suspected") == []
    job.supervisor.terminate()
    assert job.wait() == 75, job.stderr
    assert stuck
    job.assert_clean()

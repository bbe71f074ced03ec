"""A rank that does not move is seen, its stacks are in its log, the laggard is named, and the job goes on."""

from __future__ import annotations

import pytest
from tests.support.harness import FtJob

LIMITS = ("--hang-timeout", "1.5s", "--grace", "3s")


def test_a_hang_names_the_laggard_leaves_all_stacks_and_costs_no_step(job: FtJob, calm: FtJob) -> None:
    """One job, which hangs in each way, and goes on after each from the step that it had reached."""
    at = {"sigstop": 8, "spin": 16, "gil": 24}
    faults = "; ".join(f"{kind} 1 {at[kind]}" for kind in at)
    job.start(*LIMITS, "--verify-resume", "off", env={"FAULT": faults})
    assert job.wait() == 0, job.stderr
    assert job.fired() == [f"{kind} 1 {attempt}" for attempt, kind in enumerate(at)]
    incidents, resumed = job.events("incident"), job.events("resumed")[1:]
    for attempt, kind in enumerate(at):
        incident, after = incidents[attempt], resumed[attempt]
        assert (incident["kind"], incident["rank"], incident["step"]) == ("hang", 1, at[kind])
        for rank in (0, 1):
            log = job.log(attempt, rank)
            assert "--- ftlaunch: stacks of rank" in log, kind
            assert log.count("(most recent call first)") >= 2, "stacks of all threads"
            assert "tiny.py" in log
        assert "_engine_run_backward" in job.log(attempt, 0)
        assert (after["source"], after["step"], after["steps_lost"]) == ("memory", at[kind], 0), kind
    assert len(incidents) == len(at), job.journal_text
    [killed] = [event for event in job.events("ranks_killed") if event["attempt"] == list(at).index("spin")]
    [seen] = [event for event in job.events("hang_seen") if event["attempt"] == killed["attempt"]]
    assert killed["ranks"] == [0, 1], "nobody died before the stacks were taken"
    assert killed["mono"] > seen["mono"]
    assert job.losses() == calm.losses()
    assert job.final() == calm.final()
    job.assert_clean()


@pytest.mark.long
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


@pytest.mark.long
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

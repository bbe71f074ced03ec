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
    killed = {list(at)[event["attempt"]]: event for event in job.events("ranks_killed")}
    assert killed.keys() == {"gil"}, "a rank whose threads run, or run again, leaves by itself, even if it hangs"
    for event in killed.values():
        [seen] = [one for one in job.events("hang_seen") if one["attempt"] == event["attempt"]]
        assert event["ranks"] == [1], "the rank that waited for it has left by itself"
        assert event["why"] == "rank 1 hangs, and does not leave by itself: SIGKILL"
        assert event["mono"] > seen["mono"], "nobody died before the stacks were taken"
    assert job.losses() == calm.losses()
    assert job.final() == calm.final()
    job.assert_clean()


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [("spin 1 0", "rank 1 is hung"), ("never 1 -1", "rank 1 has not reached attach()")],
    ids=["in the first step", "before attach"],
)
def test_a_duration_holds_in_each_phase(job: FtJob, calm: FtJob, fault: str, words: str) -> None:
    """As in AIMaster's sentence: "when the hang exceeds 1 hour"."""
    job.start("--hang-timeout", "12s", "--startup-timeout", "auto", "--grace", "1s", env={"FAULT": fault})
    assert job.wait() == 0, job.stderr
    assert job.fired() == [f"{fault.rpartition(' ')[0]} 0"]
    (incident,) = job.events("incident")
    assert (incident["kind"], incident["rank"]) == ("hang", 1)
    assert words in incident["sentence"]
    assert "(limit 12 s)" in incident["sentence"]
    assert job.final() == calm.final()
    job.assert_clean()


@pytest.mark.long
def test_kills_and_hangs_together_are_restarted_three_times_at_most(job: FtJob) -> None:
    """As in AIMaster's sentence: restarted when it hangs or fails, three times at most."""
    faults = ("sigkill 1 5", "sigstop 1 8", "sigkill 1 11", "sigstop 1 14")
    job.start(*LIMITS, "--max-restarts", "3", "--backoff-first", "10ms", env={"FAULT": "; ".join(faults)})
    assert job.wait() == 1, job.stderr
    kinds = [fault.partition(" ")[0] for fault in faults]
    assert job.fired() == [f"{kind} 1 {attempt}" for attempt, kind in enumerate(kinds)]
    incidents = job.events("incident")
    assert [event["kind"] for event in incidents] == ["killed", "hang", "killed", "hang"]
    assert [event["restarts_left"] for event in incidents] == [2, 1, 0, 0]
    assert "giving up: 3 of 3 restarts are used up" in job.stderr
    job.assert_clean()


@pytest.mark.slow
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

"""Two nodes train as one does; a rank that fails on one of them costs what it costs on one node."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.agents import PATIENT, NodesJob
from tests.support.harness import FtJob


def test_two_nodes_train_to_what_one_node_trains_to(nodes: NodesJob, alone: FtJob) -> None:
    nodes.begin()
    assert nodes.codes() == [0, 0], nodes.transcript
    nodes.assert_same_end(alone)
    (committed,) = nodes.events("checkpoint_committed")
    assert (committed["step"], committed["why"]) == (30, "end")
    assert nodes.events("job_finished")[-1]["code"] == 0
    speaker = next(number for number in range(2) if "done; 0 of 3 restarts used" in nodes.said(number))
    assert f"job {nodes.job_id} has 2 nodes, 4 ranks" in nodes.said(speaker)
    assert nodes.said(1 - speaker).splitlines() == [
        f"ftlaunch: joined: the head at 127.0.0.1:{nodes.port} speaks for the job",
        f"ftlaunch: this is node {1 - speaker} of 2",
        f"ftlaunch: the job is over, says the head at 127.0.0.1:{nodes.port}: exit code 0",
    ]
    nodes.assert_clean()


@pytest.mark.long
def test_a_killed_rank_of_another_node_costs_no_step(nodes: NodesJob, alone: FtJob) -> None:
    """Twice, on either node; both nodes have told what they began with before the second fault."""
    nodes.words = ("--steps", "30", "--step-time", "0.1")
    nodes.env["FAULT"] = "sigkill 3 12; exception 0 20"
    nodes.begin()
    assert nodes.codes() == [0, 0], nodes.transcript
    assert nodes.fired() == ["sigkill 3 0", "exception 0 1"]
    killed, raised = nodes.events("incident")
    assert (killed["kind"], killed["rank"]) == ("killed", 3)
    assert (raised["kind"], raised["rank"]) == ("exception", 0)
    assert "ZeroDivisionError" in raised["sentence"]
    after = nodes.events("resumed")[1:]
    assert [(one["source"], one["steps_lost"]) for one in after] == [("memory", 0)] * 2
    for step, one in zip((12, 20), after, strict=True):
        assert one["step"] in (step - 1, step), "a node that had not ended the step leaves before it"
    nodes.assert_same_end(alone)
    nodes.assert_clean()


@pytest.mark.slow
def test_a_hang_names_the_rank_and_who_waits_for_it_on_both_nodes(nodes: NodesJob, alone: FtJob) -> None:
    nodes.env["FAULT"] = "spin 2 12"
    nodes.begin("--hang-timeout", "3s", "--verify-resume", "off")
    assert nodes.codes() == [0, 0], nodes.transcript
    assert nodes.fired() == ["spin 2 0"]
    (incident,) = nodes.events("incident")
    assert (incident["kind"], incident["rank"]) == ("hang", 2), incident
    assert "ranks 0, 1 and 3 wait for it in all_reduce" in incident["cause"]
    assert "(in spin)" in incident["cause"]
    assert nodes.resumed() == ("memory", 12, 0)
    nodes.assert_same_end(alone)
    nodes.assert_clean()


@pytest.mark.slow
def test_ranks_that_wait_for_one_that_hangs_leave_by_themselves_on_three_machines(tmp_path: Path) -> None:
    """Killed in the middle of a transfer, they could take GPUs with them. Taken out: all ranks are killed at once."""
    job = NodesJob(tmp_path, nodes=3, ranks=1)
    job.env["FAULT"] = "gil 1 12"
    job.options = (*PATIENT, "--grace", "1h")
    job.begin("--hang-timeout", "5s", "--startup-timeout", "60s", "--verify-resume", "off")
    assert job.codes() == [0, 0, 0], job.transcript
    assert job.fired() == ["gil 1 0"]
    (incident,) = job.events("incident")
    assert (incident["kind"], incident["rank"]) == ("hang", 1), incident
    (killed,) = job.events("ranks_killed")
    assert killed["ranks"] == [1]
    assert killed["why"] == "rank 1 hangs, and does not leave by itself: SIGKILL"
    assert job.resumed() == ("memory", 12, 0)
    job.assert_clean()
    job.dispose()

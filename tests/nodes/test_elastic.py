"""Jobs whose nodes change: one is lost and nobody comes, others are taken in, one leaves.

The step time leaves a test the time to ask for something while the job trains.
"""

from __future__ import annotations

import os
import signal
import socket

import pytest
from tests.support.agents import NodesJob
from tests.support.ctl import ftctl
from tests.support.harness import FtJob
from tests.support.waiting import wait_for

SLOWLY = ("--steps", "30", "--step-time", "0.2")
AT_ONCE = ("--rdzv-conf", "last_call_timeout=0")


@pytest.fixture
def elastic(nodes: NodesJob) -> NodesJob:
    """A job of one node or two."""
    nodes.range, nodes.words = "1:2", SLOWLY
    return nodes


def asked(job: NodesJob, *words: str) -> tuple[int, str]:
    """Exit code and words of `ftctl nodes`."""
    code, out, err = ftctl("nodes", job.run_dir, *words, cwd=job.home)
    return code, out + err


@pytest.mark.slow
def test_a_lost_node_without_a_standby_leaves_a_smaller_job(elastic: NodesJob) -> None:
    elastic.options = (*elastic.options, "--storage-interval", "10")
    elastic.begin()
    elastic.wait_step(13)
    elastic.supervisors[1].kill()
    assert elastic.codes() == [0, -signal.SIGKILL], elastic.transcript
    (incident,) = elastic.events("incident")
    assert incident["kind"] == "node-lost", incident
    source, step, _ = elastic.resumed()
    assert source == "storage"
    assert step >= 10, "the checkpoint of step 10, or what the other node had in memory, and has saved"
    assert "the job goes on with 1 node instead of 2 (1:2), 2 ranks" in elastic.journal_text + elastic.transcript
    elastic.assert_clean(".node1")


@pytest.mark.slow
def test_a_node_that_comes_later_is_taken_in_when_that_is_asked_for(elastic: NodesJob) -> None:
    elastic.options, elastic.words = (*elastic.options, *AT_ONCE), ("--steps", "90", "--step-time", "0.2")
    elastic.agent("--node-rank", "0")
    elastic.wait_step(3)
    assert asked(elastic, "grow")[1].startswith("ftctl: cannot take in nodes: none stands by")
    elastic.agent("--node-rank", "1", "--no-warm")
    elastic.wait_joined(2)
    elastic.wait_step(6)
    assert len(elastic.events("attempt_started")) == 1, "nobody was restarted because somebody came"
    code, told = asked(elastic, "grow")
    assert (code, told) == (0, "all ranks stop at one step, which is saved; then the job goes on with 2 nodes\n")
    assert elastic.codes() == [0, 0], elastic.transcript
    assert elastic.resumed()[2] == 0, elastic.transcript
    assert "the job goes on with 2 nodes instead of 1 (1:2), 4 ranks" in elastic.journal_text + elastic.transcript
    assert elastic.events("job_finished")[-1]["restarts"] == 0
    assert not elastic.events("incident")
    elastic.assert_clean()


def with_standby(nodes: NodesJob) -> None:
    """Two nodes train, and a third agent, which came later, stands by."""
    nodes.words = ("--steps", "30", "--step-time", "0.5")  # a third agent takes seconds to come on a busy machine
    nodes.options = (*nodes.options, "--verify-resume", "off")  # else a stop makes a step more
    nodes.begin()
    nodes.wait_event("attempt_started")
    nodes.agent("--no-warm")
    nodes.wait_joined(3)
    nodes.wait_step(1)
    assert nodes.events("checkpoint_committed") == [], "the test came too late"


def assert_replaced(nodes: NodesJob, alone: FtJob) -> None:
    """Node 1 has left for a standby, and nothing else has happened."""
    assert nodes.codes() == [0, 75, 0], nodes.transcript
    assert "this node leaves the job, which goes on without it" in nodes.said(1)
    assert nodes.resumed()[2] == 0, nodes.transcript
    assert nodes.events("job_finished")[-1]["restarts"] == 0
    assert not nodes.events("incident")
    assert len(nodes.events("attempt_started")) == 2
    nodes.assert_same_end(alone)
    nodes.assert_clean()


@pytest.mark.slow
def test_a_drained_node_leaves_its_place_to_a_standby(nodes: NodesJob, alone: FtJob) -> None:
    with_standby(nodes)
    assert ftctl("drain", "7", nodes.run_dir, cwd=nodes.home) == (1, "", f"ftctl: {refusal()}\n")
    told = wait_for(lambda: drained(nodes), "a standby that is ready")
    assert told.endswith("then node 1 leaves, and another node takes its place\n")
    assert [(event["node"], event["by"]) for event in nodes.events("drain_requested")] == [("1", "ftctl drain")]
    assert_replaced(nodes, alone)


def drained(nodes: NodesJob) -> str:
    """What `ftctl drain 1` says; nothing while no standby is ready."""
    code, told, err = ftctl("drain", "1", nodes.run_dir, cwd=nodes.home)
    assert code == 0 or "none that stands by is ready yet" in err, err + nodes.transcript
    return told


def refusal() -> str:
    """What is said of a node that is not there."""
    host = socket.gethostname()
    return f"cannot drain `7`: no node has this place or host; the job has 0 ({host}), 1 ({host})"


@pytest.mark.slow
def test_a_signal_to_one_agent_is_a_drain_where_another_stands_by(nodes: NodesJob, alone: FtJob) -> None:
    with_standby(nodes)
    nodes.supervisors[1].terminate()
    assert_replaced(nodes, alone)


@pytest.mark.slow
def test_signals_to_all_agents_stop_the_job(nodes: NodesJob, alone: FtJob) -> None:
    """Also where one alone would have been a drain: more leave than the job can do without."""
    with_standby(nodes)
    for agent in nodes.supervisors:
        agent.terminate()
    assert nodes.codes() == [75, 75, 75], nodes.transcript
    (committed,) = nodes.events("checkpoint_committed")
    assert {max(nodes.losses(rank)) for rank in range(4)} == {committed["step"] - 1}, "not all stopped at one step"
    nodes.begin()
    assert nodes.codes()[3:] == [0, 0], nodes.transcript
    nodes.assert_same_end(alone)
    nodes.assert_clean()


def kill_all(job: NodesJob) -> None:
    """Every agent and the head: what memory holds is left."""
    pids = [pid for node in range(len(job.supervisors)) for pid in job.ranks_of(node)]
    os.kill(job.head, signal.SIGKILL)
    for agent in job.supervisors:
        agent.kill()
    job.wait_gone(pids)


@pytest.mark.slow
def test_memory_of_a_smaller_job_is_saved_before_the_larger_one_begins(elastic: NodesJob) -> None:
    """Taken out: it begins again at step 0, for nothing was ever saved."""
    elastic.options = (*elastic.options, *AT_ONCE, "--storage-interval", "off")
    elastic.agent("--node-rank", "0", "--memory-interval", "1")
    elastic.wait_step(5)
    kill_all(elastic)
    elastic.options = ("--grace", "3s", "--rdzv-conf", "last_call_timeout=60")
    elastic.begin()
    assert elastic.codes()[1:] == [0, 0], elastic.transcript
    committed = elastic.events("checkpoint_committed")[0]["step"]
    assert committed >= 5
    assert elastic.resumed()[:2] == ("storage", committed), elastic.transcript
    assert "the job goes on with 2 nodes instead of 1" in elastic.transcript
    elastic.assert_clean()


@pytest.mark.slow
def test_half_of_the_memory_of_two_nodes_is_not_taken_for_that_of_one(elastic: NodesJob) -> None:
    """Taken out: node 0 would go on from a step of which it has the half, as if it were all."""
    elastic.options = (*elastic.options, "--storage-interval", "10")
    elastic.begin()
    elastic.wait_step(13)
    kill_all(elastic)
    elastic.options = (*elastic.options, *AT_ONCE)
    elastic.agent("--node-rank", "0")
    assert elastic.codes()[2:] == [0], elastic.transcript
    assert elastic.resumed()[:2] == ("storage", 10), elastic.transcript
    assert "steps in memory of 2 nodes are not all here, and not used" in elastic.transcript
    elastic.assert_clean(".node1")

"""A node is lost: its agent is killed, or frozen. Another one takes its place, or it comes back, or nobody comes.

In these jobs the fault holds all ranks in the body of a step, so that what the test does falls into that step.
"""

from __future__ import annotations

import os
import signal

import pytest
from tests.support.agents import PATIENT, NodesJob
from tests.support.harness import FtJob
from tests.support.waiting import wait_for

from ftlaunch_contract.pages.page import NONE, Page, page_path

AT = 15
WAIT = "20s"  # the agents of a busy machine may start so far apart


def lose(nodes: NodesJob, number: int) -> None:
    """SIGKILL to an agent; its ranks die with it."""
    pids = nodes.ranks_of(number)
    nodes.supervisors[number].kill()
    nodes.wait_gone(pids)


def assert_goes_on(nodes: NodesJob, alone: FtJob) -> None:
    """Start the commands again without the fault: the job resumes from memory and ends as the undisturbed job does."""
    del nodes.env["FAULT"]
    nodes.begin()
    assert nodes.codes()[2:] == [0, 0], nodes.transcript
    assert nodes.resumed()[:2] == ("memory", AT)
    nodes.assert_same_end(alone)
    nodes.assert_clean()


def assert_lost(nodes: NodesJob, node: int) -> None:
    """One incident, and it names the node."""
    (incident,) = nodes.events("incident")
    assert incident["kind"] == "node-lost", incident
    assert f"node {node} (" in incident["sentence"]
    assert "is lost" in incident["sentence"]


@pytest.mark.slow
def test_a_killed_agent_that_is_started_again_has_its_memory_still(nodes: NodesJob, alone: FtJob) -> None:
    """The agent that had started the head: the head lives on."""
    nodes.env["FAULT"] = f"deaf 3 {AT}"
    nodes.begin()
    nodes.wait_held(AT)
    lost = nodes.speaker
    lose(nodes, lost)
    nodes.wait_said(lost, f"waiting for a node for place {lost}")
    nodes.agent("--node-rank", str(lost))
    codes = nodes.codes()
    assert codes.pop(lost) == -signal.SIGKILL
    assert codes == [0, 0], nodes.transcript
    assert_lost(nodes, lost)
    assert nodes.resumed() == ("memory", AT, 0)
    nodes.assert_same_end(alone)
    nodes.assert_clean()


@pytest.mark.slow
def test_a_standby_takes_the_place_of_a_killed_agent(nodes: NodesJob, alone: FtJob) -> None:
    """The lost node's memory is lost, too: it goes on from the newest checkpoint."""
    nodes.env["FAULT"] = f"deaf 3 {AT}"
    nodes.options = (*nodes.options, "--storage-interval", "10", "--peer-interval", "0")
    nodes.begin()
    nodes.wait_held(AT)
    assert nodes.wait_event("checkpoint_committed")["step"] in (10, AT)  # AT: steps are faster than a busy head
    nodes.agent()
    nodes.wait_joined(3)
    lose(nodes, 1)
    assert nodes.codes() == [0, -signal.SIGKILL, 0], nodes.transcript
    assert_lost(nodes, 1)
    (resumed,) = [event for event in nodes.events("resumed") if event["step"] > 0]
    committed = [event for event in nodes.events("checkpoint_committed") if event["mono"] < resumed["mono"]]
    newest = max(event["step"] for event in committed)
    assert nodes.resumed() == ("storage", newest, AT - newest)
    nodes.assert_same_end(alone)
    nodes.assert_clean(".node1")


@pytest.mark.slow
def test_where_nobody_comes_the_job_ends_and_keeps_what_is_left(nodes: NodesJob, alone: FtJob) -> None:
    """Taken out: where the head says `keep` 0, the other node deletes its part of a step that the lost one has, too."""
    nodes.env["FAULT"] = f"deaf 3 {AT}"
    nodes.options = (*nodes.options, "--node-wait", WAIT)
    nodes.begin()
    nodes.wait_held(AT)
    speaker = nodes.speaker
    lose(nodes, 1)
    assert nodes.codes() == [75, -signal.SIGKILL], nodes.transcript
    assert_lost(nodes, 1)
    assert "1 node is missing, and none has come in 20 s (--node-wait)" in nodes.said(speaker)
    assert f"step {AT} could not be saved without the missing nodes" in nodes.said(speaker)
    nodes.assert_clean(".node0", ".node1")
    assert_goes_on(nodes, alone)


@pytest.mark.slow
def test_nodes_that_have_come_back_keep_their_memory_where_the_job_is_given_up(nodes: NodesJob, alone: FtJob) -> None:
    """Taken out (only nodes with a place are asked): the head says `keep` 0, and both delete the step they hold."""
    nodes.env["FAULT"] = f"deaf 3 {AT}"
    nodes.options = (*nodes.options, "--max-restarts", "0", "--peer-interval", "0")
    nodes.begin()
    nodes.wait_held(AT)
    agents = list(nodes.supervisors)
    for agent in agents:
        os.kill(agent.pid, signal.SIGSTOP)
    nodes.wait_event("node_left", 2)
    for agent in agents:
        os.kill(agent.pid, signal.SIGCONT)
    assert nodes.codes() == [1, 1], nodes.transcript
    assert "giving up" in nodes.transcript
    assert f"step {AT} could not be saved without the missing nodes" in nodes.transcript
    assert_goes_on(nodes, alone)


@pytest.mark.slow
def test_a_frozen_node_is_lost_and_does_no_harm_when_it_goes_on(nodes: NodesJob, alone: FtJob) -> None:
    nodes.env["FAULT"] = f"deaf 0 {AT}"
    nodes.options = (*nodes.options, "--storage-interval", "10", "--peer-interval", "0", "--node-timeout", "8s")
    nodes.words = ("--steps", "30", "--step-time", "0.2")
    nodes.begin()
    nodes.wait_held(AT)
    assert nodes.wait_event("checkpoint_committed")["step"] == 10
    nodes.agent()
    nodes.wait_joined(3)
    agent, ranks = nodes.supervisors[1], nodes.ranks_of(1)
    for pid in (agent.pid, *ranks):
        os.kill(pid, signal.SIGSTOP)
    nodes.wait_event("incident")
    nodes.wait_event("resumed", 2)
    for pid in (*ranks, agent.pid):  # the agent at last: it ends the ranks
        os.kill(pid, signal.SIGCONT)
    nodes.wait_gone(ranks)
    assert not nodes.events("job_finished"), "the test came too late"
    assert nodes.codes() == [0, 0, 0], nodes.transcript
    assert_lost(nodes, 1)
    assert "no sign of life for" in nodes.events("incident")[0]["sentence"]
    assert nodes.resumed() == ("storage", 10, 5)
    nodes.assert_same_end(alone)
    nodes.assert_clean()


@pytest.mark.slow
def test_a_killed_head_is_replaced_and_the_ranks_run_on(nodes: NodesJob, alone: FtJob) -> None:
    """The restart budget survives the old head: the new head counts the rank that was killed before."""
    nodes.options = (*nodes.options, *PATIENT)
    nodes.words = ("--steps", "30", "--step-time", "0.2")
    nodes.env["FAULT"] = "sigkill 3 5"
    nodes.begin()
    nodes.wait_event("recovered")
    ranks, head = nodes.ranks_of(0) + nodes.ranks_of(1), nodes.head
    os.kill(head, signal.SIGKILL)
    nodes.wait_event("attempt_adopted")
    assert nodes.head != head
    assert nodes.ranks_of(0) + nodes.ranks_of(1) == ranks
    assert nodes.codes() == [0, 0], nodes.transcript
    assert len(nodes.events("attempt_started")) == 2
    assert nodes.events("job_finished")[-1]["restarts"] == 1
    nodes.assert_same_end(alone)
    nodes.assert_clean()


@pytest.mark.slow
def test_a_frozen_head_is_ended_and_replaced(nodes: NodesJob, alone: FtJob) -> None:
    """It holds its port, its locks and its connections: only its silence tells."""
    nodes.words = ("--steps", "30", "--step-time", "0.3")
    nodes.begin()
    nodes.wait_step(5)
    head = nodes.head
    os.kill(head, signal.SIGSTOP)
    nodes.wait_event("job_started", 2)
    nodes.wait_gone([head])
    assert nodes.codes() == [0, 0], nodes.transcript
    nodes.assert_same_end(alone)
    nodes.assert_clean()


@pytest.mark.slow
def test_a_head_that_dies_in_mid_save_keeps_no_slot(nodes: NodesJob, alone: FtJob) -> None:
    """A slot that is kept for a save that nobody makes any more would hold the ranks up at some later step for ever."""
    nodes.options = (*nodes.options, *PATIENT)
    nodes.words = ("--steps", "30", "--step-time", "0.2")
    nodes.begin()
    nodes.wait_step(5)
    pages = [Page(page_path(nodes.memory_of(node), rank)) for node in range(nodes.nodes) for rank in nodes.own(node)]
    os.kill(nodes.head, signal.SIGKILL)
    for page in pages:
        page.reading = max(page.slot_steps())
    nodes.wait_event("attempt_adopted")
    wait_for(lambda: all(page.reading == NONE for page in pages), "the slots to be given back")
    assert not nodes.events("checkpoint_committed"), "a save came first"
    for page in pages:
        page.close()
    assert nodes.codes() == [0, 0], nodes.transcript
    nodes.assert_same_end(alone)
    nodes.assert_clean()


@pytest.mark.slow
def test_a_signal_to_any_agent_stops_all_nodes_at_one_step(nodes: NodesJob, alone: FtJob) -> None:
    nodes.words = ("--steps", "30", "--step-time", "0.2")
    nodes.begin()
    nodes.wait_step(5)
    other = 1 - nodes.speaker
    nodes.supervisors[other].terminate()
    assert nodes.codes() == [75, 75], nodes.transcript
    (committed,) = nodes.events("checkpoint_committed")
    assert 5 <= committed["step"] < 30, committed
    assert {max(nodes.losses(rank)) for rank in range(4)} == {committed["step"] - 1}, "not all stopped at one step"
    nodes.assert_clean()
    nodes.begin()
    assert nodes.codes()[2:] == [0, 0], nodes.transcript
    assert nodes.resumed()[:2] == ("storage", committed["step"])
    nodes.assert_same_end(alone)
    nodes.assert_clean()
    wait_for(lambda: nodes.events("job_finished"), "the end in the journal")

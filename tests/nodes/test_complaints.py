"""What users of torchrun on several nodes complain about, and the test that shows it does not happen here.

- a lost node is neither noticed nor replaced
    test_machines.py::test_a_lost_machine_is_replaced_from_the_newest_checkpoint
- agents that were ended by a signal cannot join again
    test_complaints.py::test_an_agent_that_was_signalled_joins_again
- one agent's leaving closes the job
    test_elastic.py::test_a_lost_node_without_a_standby_leaves_a_smaller_job
- the end of the head's process ends the job
    test_lost_nodes.py::test_a_killed_head_is_replaced_and_the_ranks_run_on
- each node has a budget of restarts of its own
    test_complaints.py::test_nodes_have_one_budget
- short, aliased and local names, and IPv6
    test_names.py::test_the_heads_name_means_another_address_to_each_machine
    test_names.py::test_machines_meet_over_ipv6
- the name of the endpoint is not published for the first 30 s
    test_names.py::test_the_resolver_drops_everything_at_first
- nodes that finish long after the head's node fail
    test_complaints.py::test_the_heads_node_finishes_long_before_the_others
- the first node leaves, and takes the job along
    test_complaints.py::test_the_first_node_leaves
- agents beyond those that are wanted fail, or never end
    test_complaints.py::test_forty_agents_of_four_nodes
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.support.agents import NodesJob
from tests.support.harness import JOBS, FtJob
from tests.support.waiting import wait_for

NAPS = JOBS / "naps.py"


def test_every_complaint_has_a_test_that_is_there() -> None:
    told = (__doc__ or "").splitlines()
    assert sum(line.startswith("- ") for line in told) == 10
    named = [line.strip().split("::") for line in told if line.startswith("    ")]
    assert len(named) == 11
    for file, test in named:
        assert f"\ndef {test}(" in (Path(__file__).parent / file).read_text(), test


@pytest.fixture
def naps(nodes: NodesJob) -> NodesJob:
    """A job whose ranks sleep, one on each node."""
    nodes.script, nodes.ranks = NAPS, 1
    nodes.options = ("--grace", "3s", "--no-warm")
    return nodes


def started(job: NodesJob, *seconds: float) -> None:
    """Start the agents of all nodes. seconds: see naps.py."""
    job.words = tuple(map(str, seconds))
    job.begin()


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda one: one.name)
def test_an_agent_that_was_signalled_joins_again(nodes: NodesJob, alone: FtJob, signum: signal.Signals) -> None:
    """Whoever has ended is started again by the same command; TERM and INT have ended all nodes at one saved step."""
    nodes.words = ("--steps", "30", "--step-time", "0.2")
    nodes.begin()
    nodes.wait_step(5)
    ranks = nodes.ranks_of(1)
    nodes.supervisors[1].send_signal(signum)
    nodes.supervisors[1].wait(60.0)
    nodes.wait_gone(ranks)
    if signum == signal.SIGKILL:
        nodes.agent("--node-rank", "1")
        assert nodes.codes() == [0, -signum, 0], nodes.transcript
        assert nodes.resumed()[0] == "memory"
    else:
        assert nodes.codes() == [75, 75], nodes.transcript
        nodes.begin()
        assert nodes.codes()[2:] == [0, 0], nodes.transcript
    nodes.assert_same_end(alone)
    nodes.assert_clean()


def test_nodes_have_one_budget(naps: NodesJob) -> None:
    """One restart for both: the failure of the second node finds it spent by the first."""
    naps.env["FAIL"] = "0 0; 1 1"
    naps.options = (*naps.options, "--max-restarts", "1")
    started(naps, 60)
    assert naps.codes() == [1, 1], naps.transcript
    first, second = naps.events("incident")
    assert (first["rank"], first["verdict"]) == (0, "restart"), naps.transcript
    assert (second["rank"], second["verdict"]) == (1, "give up"), naps.transcript
    naps.assert_clean()


@pytest.mark.slow
def test_the_heads_node_finishes_long_before_the_others(naps: NodesJob) -> None:
    """35 s are longer than any patience that an agent has with a lost head."""
    started(naps, 1, 36)
    ended = naps.wait_event("rank_exited")
    last = naps.wait_event("rank_exited", 2)
    assert (ended["rank"], last["rank"]) == (0, 1)
    assert last["mono"] - ended["mono"] > 30.0
    assert naps.codes() == [0, 0], naps.transcript
    assert not naps.events("incident")
    naps.assert_clean()


@pytest.mark.slow
def test_the_first_node_leaves(nodes: NodesJob, alone: FtJob) -> None:
    """Also where it has started the head, whose port is the job's endpoint. Another node stands by."""
    nodes.words = ("--steps", "30", "--step-time", "0.8")  # a third agent takes seconds to come on a busy machine
    nodes.agent("--node-rank", "0")
    wait_for(lambda: nodes.events("job_started"), "the head")
    nodes.agent("--node-rank", "1")
    nodes.wait_event("attempt_started")
    nodes.agent("--no-warm")
    nodes.wait_said(2, "this node stands by")
    assert nodes.speaker == 0
    nodes.supervisors[0].terminate()
    assert nodes.codes() == [75, 0, 0], nodes.transcript
    assert nodes.events("job_finished")[-1]["restarts"] == 0
    assert not nodes.events("incident")
    nodes.assert_same_end(alone)
    nodes.assert_clean()


@pytest.mark.slow
def test_forty_agents_of_four_nodes(naps: NodesJob) -> None:
    """36 stand by, and say so; the end of the job ends them all with 0.

    Agents that begin at the same time on few cores do not get them for seconds: that is no node's loss here.
    """
    naps.nodes, naps.range = 4, "4"
    naps.options = (*naps.options, "--node-timeout", "60s")
    started(naps, 600)
    naps.wait_event("attempt_started", seconds=60.0)
    for number in range(4, 40):
        naps.agent()
        if number % 4 == 3:
            naps.wait_said(number, "this node stands by: ")
    for number in range(4, 40):
        naps.wait_said(number, "this node stands by: ")
    assert not any("stands by" in naps.said(number) for number in range(4)), naps.transcript
    naps.out.mkdir()
    (naps.out / "awake").touch()
    assert naps.codes() == [0] * 40, naps.transcript
    assert len(naps.events("attempt_started")) == 1
    naps.assert_clean()

"""Other nodes for a job of one to three: what is granted, what is refused, and what becomes of memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.fakes.cluster import LAST_CALL, FakeAgent, Head

from ftlaunch.nodes.cluster.mirrors.page_words import Changes
from ftlaunch.nodes.cluster.regrouping import CannotRegroup
from ftlaunch_contract.pages.page import NONE


@pytest.fixture
def head(tmp_path: Path) -> Head:
    """Two nodes of one to three train, and their memory holds step 9."""
    made = Head(tmp_path, nodes=3, least=1)
    made.agent(host="a")
    made.agent(host="b")
    assert not made.cluster.must_regroup()
    made.clock.now += LAST_CALL
    for agent in made.agents:
        agent.beat()
    begin_attempt(made, 0)
    hold(made, 9)
    return made


def begin_attempt(head: Head, number: int) -> None:
    assert head.cluster.must_regroup()
    head.cluster.regroup(True)
    assert head.cluster.is_settled()
    head.attempt(number)
    assert not head.cluster.must_regroup()


def hold(head: Head, step: int) -> None:
    for page in head.pages.pages:
        page.set_slot(0, step)


def places(head: Head) -> dict[int, int]:
    return {member.key: member.place for member in head.cluster.roster.members.values()}


def refused(ask: Callable[[], str]) -> str:
    with pytest.raises(CannotRegroup) as refusal:
        ask()
    return str(refusal.value)


def test_the_ranks_are_those_of_the_nodes_that_are_here(head: Head) -> None:
    assert len(head.pages) == 4
    placement = head.agents[1].newest("spawn")["place"]
    assert (placement["world"], placement["nodes"]) == (4, 2)
    assert head.agents[1].newest("spawn")["lineage"].endswith("/2")
    assert "the job begins with 2 nodes (1:3), 4 ranks" in head.said[-1]


def test_a_node_that_comes_is_taken_in_only_when_that_is_asked_for(head: Head) -> None:
    assert "none stands by" in refused(head.cluster.regrouping.grow)
    newcomer = head.agent(host="c")
    assert head.paused == 0
    assert "goes on with 3 nodes" in head.cluster.regrouping.grow()
    assert head.paused == 1
    begin_attempt(head, 1)
    assert newcomer.newest("spawn")["place"]["node"] == 2
    assert head.pages.newest_common() == NONE, "memory of two nodes is of no use to three"
    assert "it has all of its 3 nodes" in refused(head.cluster.regrouping.grow)


def test_where_memory_could_not_be_saved_the_nodes_stay(head: Head) -> None:
    """Taken out: step 9 is lost."""
    head.agent(host="c")
    head.cluster.regrouping.grow()
    assert head.cluster.must_regroup()
    head.cluster.regroup(False)
    assert not head.cluster.must_regroup()
    assert head.cluster.is_settled()
    assert len(head.pages) == 4
    assert head.pages.newest_common() == 9


@pytest.mark.parametrize("name", ["1", "b"])
def test_a_node_leaves_and_a_standby_takes_its_place(head: Head, name: str) -> None:
    newcomer = head.agent(host="c")
    head.cluster.roster.most = 2
    told = head.cluster.regrouping.drain(name, "asked for")
    assert told.endswith("then node 1 leaves, and another node takes its place")
    head.cluster.regrouping.drain(name, "asked for")
    assert head.paused == 1, "asked twice, paused once"
    begin_attempt(head, 1)
    assert "leaves the job" in head.agents[1].newest("dismissed")["why"]
    assert newcomer.newest("spawn")["place"]["node"] == 1
    assert [page.slot_steps()[0] for page in head.pages.pages] == [9, 9, NONE, NONE]
    head.agents[1].on_end("closed")
    assert not head.exited, "its end is no loss"


def test_a_node_leaves_a_smaller_job(head: Head) -> None:
    assert head.cluster.regrouping.drain("0", "asked for").endswith(
        "then node 0 leaves, and the job goes on with 1 node"
    )
    begin_attempt(head, 1)
    assert len(head.pages) == 2
    assert head.agents[1].newest("spawn")["place"]["node"] == 0
    told = refused(lambda: head.cluster.regrouping.drain("0", "asked for"))
    assert "0 would be left, the job has at least 1, and none stands by" in told
    newcomer = head.agent(ready=False, host="c")
    told = refused(lambda: head.cluster.regrouping.drain("0", "asked for"))
    assert "the job has at least 1, and none that stands by is ready yet" in told
    newcomer.say("ready", apart=[], journal=[])
    assert "another node takes its place" in head.cluster.regrouping.drain("0", "asked for")
    assert "no node has this place or host" in refused(lambda: head.cluster.regrouping.drain("7", "asked for"))


def test_a_standby_leaves_at_once(head: Head) -> None:
    newcomer = head.agent(host="c")
    head.cluster.regrouping.drain("c", "asked for")
    assert newcomer.names()[-1] == "dismissed"
    assert head.paused == 0
    assert head.cluster.left == 2


def test_a_signal_drains_where_enough_are_left_and_stops_the_job_else(head: Head) -> None:
    head.agents[0].say("drain", why="SIGTERM to the agent of a")
    assert (head.paused, head.stops) == (1, [])
    head.agents[1].say("drain", why="SIGTERM to the agent of b")
    assert head.stops == ["SIGTERM to the agent of b"]


def test_who_was_signalled_stops_the_job_when_the_others_are_gone(head: Head) -> None:
    """It has to leave, and nobody is left to go on."""
    head.agents[0].say("drain", why="SIGTERM to the agent of a")
    lose(head, head.agents[1])
    head.cluster.must_regroup()
    assert head.stops == ["SIGTERM to the agent of a"]


def test_beats_of_another_number_of_nodes_do_not_come_into_the_mirrors(head: Head) -> None:
    """Taken out: a step that was dropped with its number of nodes is there again."""
    lineage = head.cluster.reports.lineage
    lose(head, head.agents[1])
    assert head.cluster.must_regroup()
    head.cluster.regroup(True)
    page = head.page_of(0)
    page.set_slot(0, 9)
    words = Changes(page).collect()
    head.agents[0].beat([[0, words], [1, words]], lineage=lineage)
    assert head.pages.newest_common() == NONE


def lose(head: Head, agent: FakeAgent) -> None:
    agent.on_end("the cable was pulled")
    head.clock.now += 10.0
    head.agents[0].beat()

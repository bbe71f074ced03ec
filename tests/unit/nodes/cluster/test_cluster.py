"""Nodes come, fall silent, come back, and say what they should not; the head stays what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.fakes.cluster import JOB, TIMEOUT, WAIT, FakeAgent, Head, lost

from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import Resume


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path)


# --- coming -----------------------------------------------------------------------------------------------------


def test_an_attempt_begins_once_every_place_has_a_node_that_is_ready(head: Head) -> None:
    first = head.agent()
    second = head.agent(ready=False, port=1234)
    assert not head.cluster.is_settled()
    second.say("ready", apart=[], journal=[])
    assert head.cluster.is_settled()
    group = head.attempt(number=3)
    assert first.newest("spawn")["attempt"] == 3
    places = [agent.newest("spawn")["place"] for agent in (first, second)]
    assert [(place["first"], place["count"], place["world"], place["node"]) for place in places] == [
        (0, 2, 4, 0), (2, 2, 4, 1),
    ]  # fmt: skip
    assert {(place["address"], place["port"]) for place in places} == {("10.0.0.0", 29500)}, "where rank 0 is"
    assert group.living == [0, 1, 2, 3]


def test_what_memory_holds_is_known_once_the_node_has_its_place_there(head: Head) -> None:
    kept = {"held": [2, 2], "slots": {"2": [7, 8], "3": [NONE, 8]}, "lineage": "run:0/2"}
    came_back = head.agent(**kept)
    head.agent(held=[0, 3], slots={"0": [8, 8], "1": [8, 8], "2": [8, 8]})  # of a job of other nodes
    assert head.cluster.is_settled()
    assert came_back.names() == ["welcome"]
    slots = head.pages.slots()
    assert [tuple(slots[rank][:2]) for rank in (2, 3)] == [(7, 8), (NONE, 8)]
    assert all(step == NONE for rank in (0, 1) for step in slots[rank])


def test_a_new_attempt_keeps_the_slot_of_the_step_that_is_being_saved_and_no_other(head: Head) -> None:
    head.running()
    assert head.agents[0].newest("spawn")["resume"][-1] == NONE
    head.pages.reading(7)
    head.attempt(1)
    assert [agent.newest("spawn")["resume"][-1] for agent in head.agents] == [7, 7]


def test_a_node_of_another_job_is_refused_with_a_sentence_and_heard_no_more(head: Head) -> None:
    stranger = head.agent(job="another", ready=False)
    assert "the job at this endpoint is another one" in stranger.newest("refused")["why"]
    assert JOB in stranger.newest("refused")["why"]
    stranger.say("ready", apart=[], journal=[])
    stranger.beat()
    assert len(head.said) == 1, "one sentence"
    assert head.cluster.left == 0


@pytest.mark.parametrize(
    "wrong",
    [{"host": 1}, {"rank": None}, {"slots": {"x": [1]}}, {"slots": {"0": 1}}, {"slots": {"0": ["x"]}},
     {"slots": {"0": [None]}}, {"held": {}}, {"do": "beat"}, {"do": "nothing"}, {"do": None}],
)  # fmt: skip
def test_a_hello_that_is_none_ends_that_connection_only(head: Head, wrong: dict[str, Any]) -> None:
    head.agent()
    agent: Any = FakeAgent(head, 9)
    head.cluster.arrivals.accepted(agent)
    agent.on_message({"do": "hello", **agent.usual_hello(), **wrong})
    assert agent.closed
    assert "is turned away: it has sent" in head.said[-1]
    assert head.cluster.left == 1


@pytest.mark.parametrize("held", [[0], [1, 2], [4, 2], [-2, 2], ["0", 2], [None, 2], [0, 2, 2], [[], []]])
def test_memory_that_is_of_no_place_is_no_memory(head: Head, held: list[Any]) -> None:
    head.agent(held=held)
    assert [member.held for member in head.cluster.roster.members.values()] == [-1]


# --- silence and loss ---------------------------------------------------------------------------------------------


def test_a_silent_node_is_lost_and_the_other_is_not(head: Head) -> None:
    group = head.running()
    head.clock.now += TIMEOUT - 0.1
    head.agents[0].beat()
    head.clock.now += 0.2
    head.cluster.poll()
    assert lost(group).keys() == {2, 3}
    assert "node 1 (here, 10.0.0.1) is lost: no sign of life for 2.1 s" in lost(group)[2]
    assert group.living == [0, 1]
    assert head.agents[1].closed
    assert not head.agents[0].closed


def at_join(head: Head) -> None:
    head.agent()
    head.agent(ready=False)


def at_place(head: Head) -> None:
    head.agent()
    head.agent()
    head.cluster.is_settled()


def at_work(head: Head) -> None:
    head.running()


def at_end(head: Head) -> None:
    group = head.running()
    for rank in range(4):
        head.agents[rank // 2].say("exits", attempt=0, codes={str(rank): 0})
    assert group.empty


PHASES = [at_join, at_place, at_work, at_end]


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
@pytest.mark.parametrize("how", ["connection", "silence", "nonsense"])
def test_a_node_may_go_in_every_phase_and_another_take_its_place(
    head: Head, phase: Callable[[Head], None], how: str
) -> None:
    phase(head)
    gone = head.agents[1]
    if how == "connection":
        gone.on_end("the cable was pulled")
    elif how == "nonsense":
        gone.say("nothing")
    else:
        head.clock.now += 1.1 * TIMEOUT
        head.agents[0].beat()
        head.cluster.poll()
    assert head.cluster.left == 1
    head.clock.now += 10.0  # any fence is over then
    head.agents[0].beat()
    assert not head.cluster.is_settled()
    head.agent()
    assert head.cluster.is_settled()
    head.agents[0].say("gone", attempt=0, port=1, slots={}, evidence={}, awaits_memory=0)
    assert head.cluster.is_cleared()
    group = head.attempt(number=1)
    assert group.living == [0, 1, 2, 3]
    assert head.agents[2].newest("spawn")["place"]["first"] == 2


def test_a_node_that_goes_before_its_ranks_are_started_is_lost_with_the_attempt(head: Head) -> None:
    for _ in range(2):
        head.agent()
    assert head.cluster.is_settled()
    head.agents[1].on_end("closed")
    group = head.attempt()
    assert lost(group).keys() == {2, 3}
    assert "it has gone before its ranks were started" in lost(group)[2]
    head.agents[0].on_end("closed")
    again = head.attempt(number=1)
    assert again.empty, "without the node of rank 0 there is nowhere to meet"


def test_the_memory_of_a_lost_node_is_lost(head: Head) -> None:
    head.running()
    for rank in range(4):
        head.pages[rank].set_slot(0, 9)
    assert head.pages.newest_common() == 9
    head.agents[1].on_end("closed")
    assert head.pages.newest_common() == NONE
    head.agent(held=[2, 2], slots={"2": [9], "3": [9]}, lineage="run:0/2")
    assert head.cluster.is_settled()
    assert head.pages.newest_common() == 9, "it has come back with it"


def test_a_node_that_has_come_back_tells_what_it_holds_before_it_has_a_place(head: Head) -> None:
    head.running()
    assert head.cluster.find_newest_unplaced() == NONE
    head.agents[1].on_end("closed")
    head.agent(held=[2, 2], slots={"2": [8, NONE], "3": [8, 9]}, lineage="run:0/2")
    assert head.cluster.find_newest_unplaced() == 9
    assert head.cluster.is_settled()
    assert head.cluster.find_newest_unplaced() == NONE, "it has its place"


def test_memory_of_another_attempt_is_never_mixed_in(head: Head) -> None:
    """Taken out: without the lineage the steps 9 of two attempts count as one."""
    head.running()
    for rank in range(4):
        head.pages[rank].set_slot(0, 9)
    head.agents[1].on_end("closed")
    head.agent(held=[2, 2], slots={"2": [9], "3": [9]}, lineage="run:7/2")
    assert head.cluster.is_settled()
    assert head.pages.newest_common() == NONE


def test_no_rank_is_started_while_those_of_a_lost_node_may_be_at_work(head: Head, monkeypatch: Any) -> None:
    monkeypatch.setattr("ftlaunch.nodes.cluster.membership.fences.PortProbe.is_dead", lambda _: False)
    head.running()
    head.agents[1].on_end("closed")
    head.agents[0].say("gone", attempt=0, port=1, slots={}, evidence={}, awaits_memory=0)
    assert not head.cluster.is_cleared()
    head.clock.now += (TIMEOUT + 1.0) * 1.1
    assert head.cluster.is_cleared()


# --- waiting for nodes --------------------------------------------------------------------------------------------


def test_the_job_is_stopped_where_nobody_comes_in_time(head: Head) -> None:
    head.agent()
    head.clock.now += WAIT + 1.0
    head.agents[0].beat()
    head.cluster.poll()
    assert head.stops == ["1 node is missing, and none has come in 60 s (--node-wait)"]
    head.cluster.poll()
    assert len(head.stops) == 1, "it is not said again at once"


def test_nodes_that_are_getting_ready_are_not_missing(head: Head) -> None:
    """A fork server may import for longer than the job would wait for nobody."""
    for _ in range(2):
        head.agent(ready=False)
    for _ in range(3):
        head.clock.now += WAIT
        for agent in head.agents:
            agent.beat()
        head.cluster.poll()
    assert head.stops == []


def test_a_vacant_place_is_told_of_once(head: Head) -> None:
    head.running()
    head.cluster.poll()
    head.agents[1].on_end("closed")
    for _ in range(3):
        head.clock.now += 0.1
        head.cluster.poll()
    assert [line for line in head.said if "waiting" in line] == [
        "waiting for a node for place 1, for 60 s at most (--node-wait)"
    ]
    head.agent()
    assert head.cluster.is_settled()
    head.clock.now += 1.0
    for agent in (head.agents[0], head.agents[2]):
        agent.beat()
    head.cluster.poll()
    assert head.stops == []


def test_where_another_stands_by_nobody_is_waited_for(head: Head) -> None:
    head.running()
    head.agent()
    head.agents[1].on_end("closed")
    head.cluster.poll()
    assert not any("waiting" in line for line in head.said)


def test_what_nodes_warn_of_is_said_and_shown_and_does_not_bury_the_rest(head: Head) -> None:
    for _ in range(22):
        head.agent(warnings=["memory: none"])
    assert [sentence for sentence in head.said if "warning" in sentence] == [
        *["warning: here: memory: none"] * 20,
        "further warnings of nodes are not said here: `ftctl nodes --json` has them",
    ]
    assert head.cluster.overview()["nodes"][0]["warnings"] == ["memory: none"]


@pytest.mark.parametrize("peer", ["127.0.0.1:4000", "[::1]:4000"])
def test_a_node_beside_the_head_has_the_address_that_others_reach(head: Head, peer: str) -> None:
    """Taken out: ranks on other machines are told to meet rank 0 on their own one."""
    agent = FakeAgent(head, 1)
    agent.peer = peer
    head.cluster.arrivals.accepted(agent)  # type: ignore[arg-type]
    agent.hello()
    (row,) = head.cluster.overview()["nodes"]
    assert row["address"] == "10.0.0.1"


def test_the_head_knows_of_which_steps_ranks_have_left_fingerprints_until_it_has_decided(head: Head) -> None:
    """A rank of which no node has spoken has left none."""
    head.running()
    head.agents[0].say("gone", attempt=0, port=1, slots={}, evidence={"0": 8, "1": 7, "3": 9}, awaits_memory=0)
    assert head.pages.evidence() == {0: 8, 1: 7, 2: NONE, 3: NONE}, "rank 3 is on another node"
    head.pages.decide(Resume.MEMORY, 6, NONE)
    assert head.pages.evidence() == dict.fromkeys(range(4), NONE)

"""What is asked on another node, who may say nothing for how long, and what the head answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.fakes.cluster import FACTS, FakeAgent, Head

from ftlaunch.nodes.cluster.nodes.arrivals import HELLO_SECONDS


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path)


def test_a_question_is_answered_with_its_number_and_where_it_was_asked(head: Head) -> None:
    head.running()
    head.cluster.on_ask = lambda request, reply: reply({"ok": True, "did": request["do"]})
    head.agents[1].say("ask", number=7, request={"do": "status"})
    assert head.agents[1].newest("answer") == {
        "do": "answer", "number": 7,
        "answer": {"ok": True, "did": "status", "asked": {"host": "here", "place": 1, "apart": False}},
    }  # fmt: skip


def test_an_answer_that_no_message_can_carry_is_refused_and_the_node_stays(head: Head) -> None:
    """Taken out: sending it raises ValueError, and the head takes the node for one that sends nonsense."""
    head.running()
    head.cluster.on_ask = lambda request, reply: reply({"ok": True, "much": "x" * (5 << 20)})
    head.agents[1].say("ask", number=1, request={})
    answer = head.agents[1].newest("answer")["answer"]
    assert answer["ok"] is False
    assert answer["error"].startswith("the answer is too long for another node (")
    assert head.cluster.left == 2


def test_the_nodes_of_a_job(head: Head) -> None:
    head.running()
    head.agent()
    head.agent(ready=False)
    head.clock.now += 1.5
    head.agents[0].beat()
    answer = json.loads(json.dumps(head.cluster.overview()))
    rows = [(row["place"], row["ranks"], row["ready"], row["silent_for"]) for row in answer["nodes"]]
    assert rows == [(0, [0, 1], True, 0.0), (1, [2, 3], True, 1.5), (None, [], True, 1.5), (None, [], False, 1.5)]
    assert {row["here_for"] for row in answer["nodes"]} == {1.5}


# --- arrivals -----------------------------------------------------------------------------------------------------


def test_who_knows_the_token_and_says_no_hello_is_ended(head: Head) -> None:
    """Taken out: the connection stays for as long as the job runs."""
    silent: Any = FakeAgent(head, 9)
    head.cluster.arrivals.accepted(silent)
    head.clock.now += HELLO_SECONDS - 0.1
    head.cluster.poll()
    assert not silent.closed
    head.clock.now += 0.2
    head.cluster.poll()
    assert silent.closed
    assert head.said == ["a node at 10.0.0.9:4009 is turned away: no hello for 5 s"]


def test_who_was_turned_away_has_as_long_to_read_why(head: Head) -> None:
    stranger = head.agent(ready=False, job="another")
    head.clock.now += HELLO_SECONDS + 0.1
    head.cluster.arrivals.poll()
    assert stranger.closed
    assert len(head.said) == 1, "it was told of before"


def test_who_ends_by_itself_is_forgotten(head: Head) -> None:
    peer: Any = FakeAgent(head, 9)
    head.cluster.arrivals.accepted(peer)
    peer.on_end("closed")
    head.clock.now += HELLO_SECONDS + 0.1
    head.cluster.arrivals.poll()
    assert (head.said, peer.closed) == ([], False)


def test_a_node_with_another_torch_is_refused_on_both_terminals(head: Head) -> None:
    stranger = head.agent(ready=False, facts={**FACTS.as_dict(), "torch": "2.12.0", "machine": "there/2"})
    why = stranger.newest("refused")["why"]
    assert why.startswith("torch is 2.12.0 on there, and 2.13.0 on here")
    assert head.said == [f"a node at 10.0.0.0:4000 is turned away: {why}"]
    assert head.cluster.left == 0


def test_a_clock_that_is_far_off_is_only_warned_of(head: Head) -> None:
    head.agent(wall=5.0)
    assert "warning: the clock of here is " in head.said[0]
    assert head.cluster.left == 1


def test_a_node_that_does_not_share_the_directories_is_gone_with_its_reason(head: Head) -> None:
    node = head.agent(ready=False)
    node.say("unfit", why="/run is not shared")
    assert node.closed
    assert head.said == ["a node standing by (here, 10.0.0.0) is gone: /run is not shared"]


# --- isolation ----------------------------------------------------------------------------------------------------


def fail(head: Head, attempt: int) -> None:
    """A failure begins on node 1, and its ranks and node 0's are gone."""
    head.machines.blame(1, "killed")
    for agent in head.agents[:2]:
        agent.say("gone", attempt=attempt, port=1, slots={}, evidence={}, awaits_memory=0)


def test_an_isolated_node_makes_room_only_where_the_next_attempt_may_begin(head: Head) -> None:
    """Taken out: the engine asks `is_settled` at every look, and a node would lose its place while its ranks run."""
    for host in ("first", "second"):
        head.agent(facts={**FACTS.as_dict(), "machine": host})
    for attempt in range(2):
        assert head.cluster.may_restart()
        head.attempt(number=attempt)
        fail(head, attempt)
    head.agent(facts={**FACTS.as_dict(), "machine": "third"})
    for rank in range(4):
        head.pages[rank].set_slot(0, 9)
    lost: list[int] = []
    head.cluster.on_lost = lost.append
    assert head.cluster.is_settled()
    assert [row["host"] and row["isolated"] for row in head.cluster.overview()["nodes"]] == [False, True, False]
    assert head.pages.newest_common() == 9, "it is still to be saved, where the job is told to stop"
    assert head.cluster.may_restart()
    assert lost == [1]
    assert head.pages.newest_common() == -1, "the standby has nothing in memory"
    head.attempt(number=2)
    assert [agent.names().count("spawn") for agent in head.agents] == [3, 2, 1]

"""Nodes beyond those that the job has: what they are told."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.fakes.cluster import Head


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path)


def test_a_node_without_a_place_is_told_that_it_stands_by_and_for_what(head: Head) -> None:
    early = head.agent(ready=False)
    head.running()
    assert "standby" not in early.names(), "it is not ready"
    early.say("ready", apart=[], journal=[])
    assert early.newest("standby")["why"] == (
        "the job has its 2 nodes, and this one takes the place of the next that fails or leaves"
    )
    assert all("standby" not in agent.names() for agent in head.agents[1:])


def test_of_nodes_that_are_ready_before_the_first_attempt_those_beyond_are_told(head: Head) -> None:
    agents = [head.agent() for _ in range(3)]
    assert head.cluster.is_settled()
    head.attempt()
    assert ["standby" in agent.names() for agent in agents] == [False, False, True]


def test_a_node_that_gets_a_place_at_once_is_not_told_to_stand_by(head: Head) -> None:
    head.running()
    head.agents[1].on_end("it was closed by the other side")
    assert "standby" not in head.agent().names()

"""An agent or a head knows less than it could: it was stopped, storage is silent, or the head before is gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.nodes.agent.test_agent import TIMEOUT, Node

from ftlaunch.nodes.cluster.cluster import FENCE_SECONDS


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_where_storage_does_not_answer_another_head_may_live_elsewhere(node: Node) -> None:
    """Taken out: without the look at storage its ranks go on for half a minute, beside those of a head elsewhere."""
    node.train()
    node.link.lose()
    node.link.refused = node.link.at_home = True
    for _ in range(5):
        node.link.tried_at = node.clock()
        node.live(1.0)
    assert node.ranks.cleared


def test_an_agent_that_was_stopped_ends_its_ranks_before_it_speaks_with_a_head(node: Node) -> None:
    """Taken out: the connection begins another lease, and its ranks go on beside those that follow them."""
    node.train()
    node.live(1.0)
    node.link.lose()
    node.clock.now += TIMEOUT + FENCE_SECONDS + 0.1
    node.link.meet()
    assert node.ranks.cleared


def test_it_tells_the_next_head_that_the_job_was_told_to_stop(node: Node) -> None:
    """Taken out: a job whose head is lost while it stops goes on as if nobody had stopped it."""
    node.train()
    node.link.heard({"do": "welcome", "term": 1, "word": "word"})
    node.link.heard({"do": "stopping"})
    assert "stop" not in node.link.names(), "this head knows it"
    node.link.lose()
    node.link.meet()
    node.link.heard({"do": "welcome", "term": 2, "word": "word"})
    assert node.link.names()[-1] == "stop"

"""What an agent does when it is signalled: it is the head's business, where there is a head."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.unit.nodes.agent.test_agent import Node

from ftlaunch_contract.protocol import EXIT_SAVED, EXIT_STOPPED


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_signal_is_the_heads_business(node: Node) -> None:
    node.train()
    node.agent.on_signals(bytes([signal.SIGTERM]))
    assert node.link.sent[-1] == {"do": "drain", "why": "SIGTERM to the agent of here"}
    node.agent.on_signals(bytes([signal.SIGINT]))
    node.agent.on_signals(bytes([signal.SIGINT]))
    assert node.link.names()[-4:] == ["drain", "stop", "hurry", "stop"], "the second Ctrl+C"
    assert not node.agent.over


def test_a_signal_without_a_head_ends_this_node(node: Node) -> None:
    node.train()
    node.link.lose()
    node.agent.on_signals(bytes([signal.SIGTERM]))
    node.live(0.3)
    assert node.ranks.cleared
    assert node.agent.code == EXIT_SAVED


def test_a_signal_before_it_has_joined_ends_it(node: Node) -> None:
    node.agent.on_signals(bytes([signal.SIGINT]))
    assert node.agent.code == EXIT_STOPPED
    assert node.said == ["SIGINT to the agent of here: it had not joined the job yet"]

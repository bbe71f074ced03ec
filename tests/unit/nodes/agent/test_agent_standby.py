"""An agent whose node has no place in the job."""

from __future__ import annotations

from pathlib import Path

from tests.unit.nodes.agent.test_agent import Node


def test_a_standby_says_so_once_also_beside_the_head(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.agent.beside_head = True
    node.link.meet()
    for why in ("the job has its 2 nodes", "the job has its 2 nodes", "the job has its 3 nodes"):
        node.link.heard({"do": "standby", "why": why})
    assert node.said == [f"this node stands by: the job has its {number} nodes" for number in (2, 3)]

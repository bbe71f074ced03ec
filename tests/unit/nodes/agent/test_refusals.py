"""Nobody listens at the endpoint: whether that means that there is no head depends on who says so."""

from __future__ import annotations

from pathlib import Path

from tests.unit.nodes.agent.test_agent import TIMEOUT, Node

from ftlaunch.nodes.cluster.cluster import FENCE_SECONDS


def test_a_refusal_of_another_machine_may_be_a_firewalls(tmp_path: Path) -> None:
    """Taken out: without `at_home` its ranks go on while a head that lives gives their place away."""
    node = Node(tmp_path)
    node.train()
    node.live(1.0)
    node.link.lose()
    node.link.refused = True
    while node.clock() < 1010.0 and not node.ranks.cleared:
        node.link.tried_at = node.clock()
        node.live(0.1)
    assert node.ranks.cleared
    assert node.clock() < 1000.0 + 2.0 + TIMEOUT + FENCE_SECONDS + 0.5

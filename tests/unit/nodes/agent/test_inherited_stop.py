"""A head that takes over stops the job once it knows the ranks, and does not wait for them for ever."""

from __future__ import annotations

from ftlaunch.nodes.agent.head.inherited_stop import InheritedStop


def test_it_waits_until_the_ranks_are_taken_up() -> None:
    """Taken out: what only the other nodes hold is neither saved nor waited for."""
    stop = InheritedStop(100.0)
    stop.ask("first")
    stop.ask("second")
    assert stop.due(99.0, begun=False) == ""
    assert stop.due(99.0, begun=True) == "first"


def test_it_waits_for_no_node_that_does_not_come() -> None:
    stop = InheritedStop(100.0)
    stop.ask("why")
    assert stop.due(100.0, begun=False) == "why"


def test_nobody_asks() -> None:
    assert InheritedStop(0.0).due(100.0, begun=True) == ""

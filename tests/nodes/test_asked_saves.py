"""What a script asks for over several nodes: the ranks of each hold the steps, and the head keeps as many."""

from __future__ import annotations

import pytest
from tests.support.agents import NodesJob
from tests.support.harness import JOBS

from ftlaunch_contract.checkpoint import layout


@pytest.mark.long
def test_exactly_these_steps_and_so_many(nodes: NodesJob) -> None:
    """Steps of milliseconds: each multiple waits until the savers of both nodes have written the one before."""
    nodes.script, nodes.words, nodes.ranks = JOBS / "asks.py", ("23", "5", "2", "3"), 1
    nodes.begin()
    assert nodes.codes() == [0, 0], nodes.transcript
    committed = [(event["step"], event["why"]) for event in nodes.events("checkpoint_committed")]
    assert committed == [*((step, "interval") for step in (5, 10, 15, 20)), (23, "end")]
    assert sorted(step for step, _ in layout.list_iterations(nodes.run_dir / "checkpoints")) == [20, 23]
    nodes.assert_clean()

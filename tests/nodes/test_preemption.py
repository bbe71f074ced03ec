"""A machine of several that will be taken away: its node leaves where others can go on, else the whole job stops."""

from __future__ import annotations

import pytest
from tests.support.agents import NodesJob
from tests.support.harness import FtJob
from tests.support.waiting import wait_for

SLOW = ("--steps", "30", "--step-time", "0.5")  # agents take seconds to come on a busy machine
SOON = ("--preempt-every", "100ms")

pytestmark = pytest.mark.long


@pytest.mark.slow
def test_notice_to_a_node_that_is_needed_stops_the_job_at_one_step(nodes: NodesJob, alone: FtJob) -> None:
    nodes.words, nodes.options = SLOW, ("--grace", "20s")  # half of it is for reaching the step
    nodes.agent("--node-rank", "0")
    nodes.agent("--node-rank", "1", "--preempt-when", "./notice", *SOON)
    nodes.wait_step(3)
    (nodes.home / "notice").touch()
    assert nodes.codes() == [75, 75], nodes.transcript
    (asked,) = nodes.events("stop_requested")
    assert asked["by"].startswith("preemption notice: ./notice is there ("), asked
    (committed,) = nodes.events("checkpoint_committed")
    assert {max(nodes.losses(rank)) for rank in range(4)} == {committed["step"] - 1}, nodes.transcript
    nodes.words = ("--steps", "30")
    nodes.begin()
    assert nodes.codes()[2:] == [0, 0], nodes.transcript
    nodes.assert_same_end(alone)
    nodes.assert_clean()


@pytest.mark.slow
def test_notice_to_a_node_whose_place_another_can_take_drains_it(nodes: NodesJob, alone: FtJob) -> None:
    nodes.words = SLOW
    nodes.agent("--node-rank", "0")
    nodes.agent("--node-rank", "1", "--preempt-when", "test -e notice", *SOON)
    nodes.wait_event("attempt_started")
    nodes.agent("--no-warm")
    wait_for(lambda: "this node stands by" in nodes.transcript, "a standby that is ready")
    nodes.wait_step(1)
    (nodes.home / "notice").touch()
    assert nodes.codes() == [0, 75, 0], nodes.transcript
    assert "test -e notice says that this machine will be taken away" in nodes.transcript
    assert not nodes.events("incident")
    nodes.assert_same_end(alone)
    nodes.assert_clean()

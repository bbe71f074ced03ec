"""--fresh in the command of each node: repeated after all of them were lost, it goes on from what memory holds."""

from __future__ import annotations

import os
import signal

import pytest
from tests.support.agents import NodesJob
from tests.support.harness import FtJob

AT = 15
GOES_ON = "--fresh is for the first run of a command: this one began anew on "
FRESH = ("--fresh", "--storage-interval", "off", "--verify-resume", "off")


@pytest.mark.long
@pytest.mark.parametrize("other_arguments", [False, True], ids=["the same command", "another command"])
def test_memory_counts_for_the_command_that_made_it(nodes: NodesJob, alone: FtJob, other_arguments: bool) -> None:
    nodes.env["FAULT"] = f"deaf 3 {AT}"
    nodes.begin(*FRESH)
    nodes.wait_held(AT)
    head = nodes.head
    ranks = [pid for node in range(nodes.nodes) for pid in nodes.ranks_of(node)]
    for agent in nodes.supervisors:
        agent.kill()
    os.kill(head, signal.SIGKILL)
    nodes.wait_gone([head, *ranks])
    del nodes.env["FAULT"]
    if other_arguments:
        nodes.words = (*nodes.words, "--step-time", "0.01")
    nodes.begin(*FRESH)
    assert nodes.codes()[2:] == [0, 0], nodes.transcript
    assert (GOES_ON in nodes.transcript) is not other_arguments
    assert nodes.resumed()[:2] == ((None, 0) if other_arguments else ("memory", AT))
    nodes.assert_same_end(alone)
    nodes.assert_clean()

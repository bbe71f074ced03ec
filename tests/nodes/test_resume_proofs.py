"""Resumes of jobs of several nodes prove themselves: what each node has seen of its ranks comes to the head."""

from __future__ import annotations

import pytest
from tests.support.agents import NodesJob
from tests.support.harness import FtJob


@pytest.mark.slow
def test_ranks_of_all_nodes_prove_a_resume(nodes: NodesJob, alone: FtJob) -> None:
    """A rank of the second node is killed behind a snapshot: all go one further back, and make that step again.

    Taken out: without `evidence` in what an agent says of its ranks' end the job resumes at step 12, and rank 3 has
    nothing to compare.
    """
    nodes.words = ("--steps", "30")
    nodes.env["FAULT"] = "sigkill 3 12"
    nodes.options = ("--verify-resume", "on")
    nodes.begin()
    assert nodes.codes() == [0, 0], nodes.transcript
    assert nodes.fired() == ["sigkill 3 0"]
    (resumed,) = nodes.events("resumed")[1:]
    assert resumed["source"] == "memory"
    (verified,) = nodes.events("resume_verified")
    assert verified["step"] == resumed["step"] <= 11
    assert (verified["answer"], verified["compared"], verified["ranks"]) == ("same", 4, 4)
    nodes.assert_same_end(alone)

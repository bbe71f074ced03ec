"""One job, asked from any of its nodes: status, nodes, stop; also where its head is frozen."""

from __future__ import annotations

import json
import os
import signal

import pytest
from tests.support.agents import NodesJob
from tests.support.ctl import ftctl


def other(nodes: NodesJob) -> str:
    """Names the memory of the agent that has not started the head."""
    return f"{nodes.job_id}.node{1 - nodes.speaker}"


@pytest.mark.long
def test_status_nodes_and_stop_on_a_node_without_the_head(nodes: NodesJob) -> None:
    nodes.words = ("--steps", "30", "--step-time", "0.2")
    nodes.begin()
    nodes.wait_step(3)
    code, out, err = ftctl("status", other(nodes), cwd=nodes.home)
    assert (code, err) == (0, ""), nodes.transcript
    first, second, *_ = out.splitlines()
    assert first.startswith(f"asked on node {1 - nodes.speaker} (")
    assert f"the head of the job is at 127.0.0.1:{nodes.port} (" in first
    assert second.startswith(f"job {nodes.job_id}: running, attempt 0")
    at_head = ftctl("status", nodes.run_dir, cwd=nodes.home)[1].splitlines()
    assert at_head[0].startswith("asked on ") and "where the head of the job runs" in at_head[0]
    code, out, _ = ftctl("nodes", other(nodes), cwd=nodes.home)
    assert code == 0
    heads, *rows = out.splitlines()
    assert heads.split()[:4] == ["node", "host", "address", "ranks"]
    assert [(row.split()[0], row.split()[2], row.split()[3]) for row in rows] == [
        ("0", "127.0.0.1", "0-1"), ("1", "127.0.0.1", "2-3"),
    ]  # fmt: skip
    told = json.loads(ftctl("nodes", "--json", other(nodes), cwd=nodes.home)[1])
    found = [(node["place"], node["ranks"], node["failures"]) for node in told["nodes"]]
    assert found == [(0, [0, 1], 0), (1, [2, 3], 0)]
    code, _, err = ftctl("nodes", other(nodes), "forgive", "nobody", cwd=nodes.home)
    assert (code, "no node has that host or place" in err) == (1, True)
    code, out, err = ftctl("stop", other(nodes), cwd=nodes.home)
    assert (code, err) == (0, ""), nodes.transcript
    assert nodes.codes() == [75, 75], nodes.transcript
    assert nodes.events("stop_requested")[0]["by"] == "ftctl stop"
    nodes.assert_clean()


@pytest.mark.slow
def test_a_frozen_head_makes_ftctl_end_with_a_sentence(nodes: NodesJob) -> None:
    """Taken out: without the agent's deadline ftctl would only say that the agent does not answer."""
    nodes.words = ("--steps", "30", "--step-time", "0.2")
    nodes.options = (*nodes.options, "--node-timeout", "30s")
    nodes.begin()
    nodes.wait_step(2)
    name, head = other(nodes), nodes.head
    os.kill(head, signal.SIGSTOP)
    try:
        code, out, err = ftctl("status", name, cwd=nodes.home)
    finally:
        os.kill(head, signal.SIGCONT)
    assert (code, out) == (1, "")
    assert f"the head at 127.0.0.1:{nodes.port} has not answered for 3 s: it is frozen, or the network" in err
    assert ftctl("status", name, cwd=nodes.home)[0] == 0, "it answers again"
    assert ftctl("stop", name, cwd=nodes.home)[0] == 0
    assert nodes.codes() == [75, 75], nodes.transcript
    nodes.assert_clean()

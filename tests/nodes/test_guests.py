"""Who comes to the endpoint and does not belong there, and who comes and is not needed."""

from __future__ import annotations

import os
import secrets
import signal
import socket

import pytest
from tests.support.agents import NodesJob, occupied_port
from tests.support.harness import FtJob
from tests.support.waiting import wait_for

SHORT = ("--node-wait", "2s", "--node-timeout", "1s", "--no-warm")


def test_nobody_answers_at_the_endpoint(nodes: NodesJob) -> None:
    """An address of this machine that another program has: no head can be started there, and none is found."""
    with occupied_port() as nodes.port:
        nodes.agent(*SHORT)
        assert nodes.codes() == [1], nodes.transcript
    assert f"cannot join: no head answers at 127.0.0.1:{nodes.port} for 2 s" in nodes.said(0)
    nodes.assert_clean()


@pytest.mark.slow
def test_an_agent_of_any_node_leaves_the_memory_of_a_named_one_alone(nodes: NodesJob) -> None:
    """Taken out: where the first has the memory of node 0, the second is told that there is another node 0."""
    with occupied_port() as nodes.port:
        nodes.agent(*SHORT)
        wait_for(nodes.memories, "the memory of the first")
        nodes.agent(*SHORT, "--node-rank", "0")
        assert nodes.codes() == [1, 1], nodes.transcript
    assert "cannot join: no head answers" in nodes.said(1)
    nodes.assert_clean()


def garbage(port: int) -> None:
    """What scanners, browsers and broken programs send."""
    for content in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 1000, secrets.token_bytes(100_000), b"\0\0\0\2{}", b""):
        with socket.create_connection(("127.0.0.1", port)) as peer:
            try:
                peer.sendall(content)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(4096):
                    pass
            except OSError:
                continue  # it was cut off, as it should be


@pytest.mark.slow
def test_strangers_are_turned_away_and_the_job_goes_on(nodes: NodesJob, alone: FtJob) -> None:
    """The fault holds the job in a step until all have come and gone."""
    nodes.env["FAULT"] = "deaf 3 12"
    nodes.options = (*nodes.options, "--hang-timeout", "100s")
    nodes.begin()
    nodes.wait_held(12)
    held = nodes.ranks_of(1)[1]
    strangers = {
        2: nodes.agent("--no-warm", words=("--steps", "31")),
        3: nodes.agent("--no-warm", ranks=3),
        4: nodes.agent("--no-warm", "--node-rank", "0"),
        5: nodes.agent(*SHORT, env={"FTLAUNCH_TOKEN": "another token, which is long enough"}),
    }
    for _ in range(2):
        nodes.agent("--no-warm")  # of this job, and not needed
    garbage(nodes.port)
    assert [agent.wait(90.0) for agent in strangers.values()] == [2, 2, 2, 2], nodes.transcript
    nodes.wait_joined(4)
    assert "cannot join: the job at this endpoint is another one" in nodes.said(2)
    assert "--steps 31" in nodes.said(2)
    assert "2 nodes of 3 ranks" in nodes.said(3)
    assert "another agent of this job has --node-rank 0 on this machine" in nodes.said(4)
    assert f"cannot take part: the head at 127.0.0.1:{nodes.port} does not accept this node's token" in nodes.said(5)
    assert not nodes.events("incident")
    os.kill(held, signal.SIGKILL)
    codes = nodes.codes()
    assert codes[:2] + codes[6:] == [0] * 4, nodes.transcript
    assert nodes.fired() == ["deaf 3 0"]
    assert nodes.resumed() == ("memory", 12, 0)
    nodes.assert_same_end(alone)
    nodes.assert_clean()

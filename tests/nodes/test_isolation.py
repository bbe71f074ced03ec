"""A machine on which failures begin again and again loses its place to a standby. Machines: host names of their own."""

from __future__ import annotations

import json
import os

import pytest
from tests.support.agents import NodesJob
from tests.support.ctl import ftctl
from tests.support.harness import FtJob

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a process a host name of its own: run as root"),
]


def test_after_two_failures_a_standby_takes_the_place(nodes: NodesJob, alone: FtJob) -> None:
    """Taken out: rank 3 is started on the second machine a third time. The head is on a third, as seen from here."""
    nodes.env["FAULT"] = "sigkill 3 8; sigkill 3 20; deaf 0 25"
    nodes.words = ("--steps", "30", "--step-time", "0.3")
    nodes.options = (*nodes.options, "--isolate-after", "2", "--hang-timeout", "100s")
    nodes.agent("--node-rank", "0", host="first")
    nodes.agent("--node-rank", "1", host="second")
    nodes.wait_event("attempt_started")
    nodes.agent("--no-warm", host="third")
    nodes.wait_said(2, "this node stands by")
    nodes.wait_event("incident", 2)
    try:
        nodes.wait_event("resumed", 3, 60.0)
    except AssertionError:
        print(nodes.transcript)
        raise
    assert nodes.resumed()[0] in ("peer", "storage"), "the standby has nothing in memory"
    assert nodes.events("resumed")[-1]["steps_lost"] == 0, "it was saved before the machine lost its place"
    assert [incident["host"] for incident in nodes.events("incident")[:2]] == ["second", "second"]
    hosts = [attempt["hosts"] for attempt in nodes.events("attempt_started")]
    assert hosts[:3] == [["first", "second"], ["first", "second"], ["first", "third"]]
    name = f"{nodes.job_id}.node0"
    told = json.loads(ftctl("nodes", "--json", name, cwd=nodes.home)[1])["nodes"]
    assert [(one["host"], one["place"], one["isolated"], one["failures"]) for one in told] == [
        ("first", 0, False, 0), ("third", 1, False, 0), ("second", None, True, 2),
    ], nodes.transcript  # fmt: skip
    assert "isolated" in ftctl("nodes", nodes.run_dir, cwd=nodes.home)[1], "the journal names a host that is not this"
    code, out, err = ftctl("nodes", nodes.run_dir, "forgive", "second", cwd=nodes.home)
    assert (code, out, err) == (0, "second: 2 failures forgiven\n", "")
    speakers = [nodes.said(number) for number in range(3)]
    lines = [line for text in speakers for line in text.splitlines() if "failures have begun on node" in line]
    assert len(lines) == 1, nodes.transcript
    assert "2 failures have begun on node 1 (second; --isolate-after): it gets no ranks any more, and third" in lines[0]
    assert nodes.fired()[:2] == ["sigkill 3 0", "sigkill 3 1"]
    assert ftctl("stop", nodes.run_dir, cwd=nodes.home)[0] == 0
    assert nodes.codes() == [75] * 3, nodes.transcript
    del nodes.env["FAULT"]
    nodes.begin()
    assert nodes.codes()[3:] == [0, 0], nodes.transcript
    nodes.assert_same_end(alone)
    nodes.assert_clean()

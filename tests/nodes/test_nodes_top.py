"""`ftctl top` of a job of several nodes: on the machine of the head, of another node, and over ssh."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import sshd
from tests.support.agents import PATIENT, NodesJob
from tests.support.sshd import SshHosts
from tests.support.terminals import Terminal
from tests.support.top import TOP, watched
from tests.support.waiting import wait_for

pytest.importorskip("textual", reason="Textual is not installed (pip install 'ftlaunch[top]')")
pytestmark = pytest.mark.long


@pytest.fixture
def hosts(tmp_path: Path, nodes: NodesJob) -> Iterator[SshHosts]:
    """A host that ssh reaches."""
    yield from sshd.made(tmp_path / "ssh", ("ada",), nodes.tag)


def begin(nodes: NodesJob) -> None:
    nodes.words = ("--steps", "1000000", "--step-time", "0.05")
    nodes.options = (*nodes.options, *PATIENT)
    nodes.begin()
    nodes.wait_event("resumed")


def end(nodes: NodesJob) -> None:
    for agent in nodes.supervisors:
        agent.terminate()
    nodes.codes()


def shows(top: Terminal, *texts: str) -> None:
    wait_for(lambda: top.read() and all(text in top.text for text in texts), f"{texts}")


@pytest.mark.slow
def test_nodes_are_shown_as_they_are_now_and_a_lost_one_is_told_of(nodes: NodesJob) -> None:
    """Taken out by hand: with the nodes of the moment at which `n` was pressed, a standby that comes is never shown."""
    begin(nodes)
    with watched(nodes) as top:
        shows(top, "4 ranks: 4 train", "2 nodes with ranks; longest unheard: node ", " rank node ")
        assert max(map(len, top.text.splitlines())) <= 80
        top.type("n")
        shows(top, "node  host")
        assert "standing by" not in top.text
        nodes.agent()
        nodes.wait_joined(3)
        shows(top, "standing by")
        top.type("q")
        shows(top, "a node has joined: ")
        lost = 1 - nodes.speaker
        nodes.supervisors[lost].kill()
        shows(top, "! incident: ", "is lost")
        top.type("\x03")
        assert top.end() == 0
    end(nodes)


@pytest.mark.slow
def test_over_ssh_in_eighty_columns(nodes: NodesJob, hosts: SshHosts) -> None:
    begin(nodes)
    env = f"PYTHONPATH={shlex.quote(':'.join(filter(None, sys.path)))} TERM=xterm-256color"
    words = [*shlex.split(hosts.command), "-tt", "ada", f"{env} {shlex.join([*TOP, str(nodes.run_dir)])}"]
    with Terminal(words, 24, 80) as top:
        shows(top, "4 ranks: 4 train", "events (times are UTC)")
        assert max(map(len, top.text.splitlines())) <= 80
        top.type("l")
        shows(top, "log of rank ")
        top.type("q")
        shows(top, "4 ranks: 4 train")
        top.type("q")
        assert top.end() == 0
    end(nodes)

"""What people give a job of several nodes that cannot be: one sentence on the terminals that need it, and nobody hangs.

Strangers at the port of a job that runs are in test_guests.py; what they send, in tests/proc/test_channel_strangers.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import signal
import socketserver
import threading
from collections.abc import Callable, Iterator

import pytest
from tests.support.agents import NodesJob, free_port
from tests.support.clocks import booted_earlier, wall_clock
from tests.support.harness import FtJob
from tests.support.refusing import refuse

SHORT = ("--node-wait", "2s", "--node-timeout", "1s", "--no-warm")
HTTP = int.from_bytes(b"HTTP", "big")
Listening = Callable[[], contextlib.AbstractContextManager[int]]
LINKS = {"x86_64": (86, 265), "aarch64": (37,)}.get(platform.machine(), ())


@contextlib.contextmanager
def web_server() -> Iterator[int]:
    """The port of a server that answers what is no request as web servers do."""

    class BadRequest(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            """Once something has come."""
            self.request.recv(100)
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", free_port()), BadRequest) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield int(server.server_address[1])
        server.shutdown()


@contextlib.contextmanager
def store() -> Iterator[int]:
    """The port of a TCPStore, as a rank or torchrun has one."""
    from torch.distributed import TCPStore

    listening = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield listening.port
    del listening


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "why"),
    [
        (web_server, f"what listens there is no head of ftlaunch: it sent a frame of {HTTP} bytes, 1024 are allowed"),
        (store, "it has said nothing for 5.0 s: another program listens there, or a head is frozen"),
    ],
)
def test_another_program_listens_at_the_endpoint(nodes: NodesJob, other: Listening, why: str) -> None:
    """One sentence, which says what is wrong with the endpoint."""
    with other() as nodes.port:
        nodes.agent(*SHORT, "--node-wait", "6s")
        assert nodes.codes() == [1], nodes.transcript
    (line,) = nodes.said(0).splitlines()
    at = f"127.0.0.1:{nodes.port}"
    line = re.sub(r"nothing for [45]\.\d s", "nothing for 5.0 s", line)  # the last try may have had less time
    assert line == f"ftlaunch: cannot join: no head answers at {at} for 6 s (cannot talk to {at}: {why})"
    nodes.assert_clean()


@pytest.mark.parametrize("token", ["", "a token that is long enough"])
def test_a_run_dir_without_hard_links(nodes: NodesJob, token: str) -> None:
    """Taken out: an agent with a token of its own says the same again and again, until --node-wait is over."""
    nodes.env = {"FTLAUNCH_TOKEN": token} if token else {}
    nodes.agent("--no-warm", enter=refuse(dict.fromkeys(LINKS, errno.EPERM)))
    assert nodes.codes() == [2], nodes.transcript
    name = nodes.run_dir / ("head/claim.1" if token else "token")
    what = "cannot be the head" if token else "cannot start"
    assert nodes.said(0) == (
        f"ftlaunch: {what}: {name}: its file system has no hard links (link(2): Operation not permitted); choose a run"
        " dir on one that has them\n"
    )
    nodes.assert_clean()


@pytest.mark.long
def test_a_run_dir_that_a_job_of_one_node_uses(nodes: NodesJob) -> None:
    """Taken out: the sentence comes again and again, until --node-wait is over."""
    nodes.start("--no-warm", args=("--out", str(nodes.out), "--step-time", "0.2"), ranks=1)
    FtJob.wait_event(nodes, "job_started")
    nodes.agent("--no-warm")
    assert nodes.supervisors[1].wait(60.0) == 2, nodes.transcript
    pid = nodes.supervisors[0].pid
    assert nodes.said(1) == f"ftlaunch: cannot start: {nodes.run_dir} is in use by a running supervisor (pid {pid})\n"
    nodes.supervisors[0].terminate()
    assert nodes.codes()[0] in (75, 143), "it was not disturbed: it has saved a step, or has made none yet"


@pytest.mark.slow
def test_a_second_job_in_the_run_dir_of_one_that_runs(nodes: NodesJob, alone: FtJob) -> None:
    """At another endpoint of the same machine. Taken out: its head claims the next term, and the first job ends."""
    nodes.env["FAULT"] = "deaf 3 12"
    nodes.begin("--hang-timeout", "100s")
    nodes.wait_held(12)
    held, head, port = nodes.ranks_of(1)[1], nodes.head, nodes.port
    nodes.port = free_port()
    other = nodes.agent("--no-warm", words=("--steps", "31"))
    assert other.wait(60.0) == 2, nodes.transcript
    assert "cannot join: the job at this endpoint is another one" in nodes.said(2)
    nodes.agent("--no-warm")
    nodes.wait_said(3, "this node stands by: ")
    assert f"joined: the head at 127.0.0.1:{port} speaks for the job" in nodes.said(3)
    assert nodes.head == head
    assert not nodes.events("incident")
    os.kill(held, signal.SIGKILL)
    assert nodes.codes() == [0, 0, 2, 0], nodes.transcript
    nodes.assert_same_end(alone)
    nodes.assert_clean()


@pytest.mark.slow
@pytest.mark.parametrize("shifted", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_clocks_an_hour_apart_change_nothing(nodes: NodesJob, alone: FtJob, shifted: int) -> None:
    """One node's wall clock is an hour ahead, and it was booted a day earlier; a rank dies, and nothing is lost."""
    nodes.env["FAULT"] = "sigkill 3 12"
    ahead = wall_clock(nodes.home, 3600.0)
    for node in range(2):
        mine = node == shifted
        enter = booted_earlier(86_400) if mine else None
        nodes.agent("--node-rank", str(node), env=ahead if mine else None, enter=enter)
    assert nodes.codes() == [0, 0], nodes.transcript
    assert nodes.fired() == ["sigkill 3 0"]
    assert "warning: the clock of " in nodes.transcript, "it was not shifted"
    assert "times in logs and of files will differ, and nothing else" in nodes.transcript
    assert nodes.resumed()[0::2] == ("memory", 0), nodes.transcript
    nodes.assert_same_end(alone)
    nodes.assert_clean()


@pytest.mark.long
def test_a_node_whose_own_check_fails_keeps_out_and_a_standby_takes_its_place(nodes: NodesJob, alone: FtJob) -> None:
    """Taken out: ranks were started on the node, whatever its check had said."""
    nodes.options = (*nodes.options, "--node-check", 'test -z "$FLAW" || { echo "its flaw: $FLAW"; exit 7; }')
    nodes.agent()
    unfit = nodes.agent(env={"FLAW": "ECC"})
    assert unfit.wait(60) == 75
    assert "): it ends with exit code 7: its flaw: ECC" in nodes.said(1)
    nodes.agent()
    assert nodes.codes() == [0, 75, 0], nodes.transcript
    nodes.assert_same_end(alone)
    nodes.assert_clean()

"""How long the supervisor waits for a fork server that has an order: as long as it computes, within a bound."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftlaunch.ranks import fork_client
from ftlaunch.ranks.fork_client import RankToFork, WarmLink
from ftlaunch.ranks.log_files import open_log
from ftlaunch.spec.resolve import resolve
from ftlaunch.system.helper_process import HelperProcesses

# Started in the fork server's place, with its arguments. It is ready at once, and takes its time over an order.
SERVER = f"""#!{sys.executable}
import os, signal, socket, sys, time
link = socket.socket(fileno=int(sys.argv[3]))
message, received, _, _ = socket.recv_fds(link, 16, 2)
busy, until = {{busy}}, time.monotonic() + {{seconds}}
while time.monotonic() < until:
    if not busy:
        time.sleep(0.01)
rank = os.fork()
if rank == 0:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCONT])
    socket.socket(fileno=received[1]).send(f"0 {{{{os.getpid()}}}}".encode())
    signal.sigwait([signal.SIGCONT])
    os._exit(0)
os.close(received[1])
os.waitpid(rank, 0)
"""

Start = Callable[[bool, float], WarmLink]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start a server that takes so many seconds, computing or not."""
    monkeypatch.setattr(fork_client, "FORK_PATIENCE_SECONDS", 0.3)
    links = []

    def make(busy: bool, seconds: float) -> WarmLink:
        server = tmp_path / "server"
        server.write_text(SERVER.format(busy=busy, seconds=seconds))
        server.chmod(0o700)
        (tmp_path / "train.py").touch()
        job = tmp_path / "job.yaml"
        job.write_text(f"script: {tmp_path / 'train.py'}\npython: {server}\n")
        spec = resolve(str(job), (), {}, os.environ)
        out = open_log(tmp_path / "warm.log")
        links.append(WarmLink(HelperProcesses(), spec, os.environ, out, without=(), begun=False))
        os.close(out)
        return links[-1]

    yield make
    for link in links:
        link.close()


def fork(link: WarmLink, home: Path) -> list[int]:
    return list(link.fork({3: RankToFork({}, home / "rank.log")}, "NOBODY=1", False, lambda: None))


def test_something_can_be_done_while_ranks_are_forked(start: Start, tmp_path: Path) -> None:
    """Taken out: an agent whose fork server takes seconds says nothing meanwhile, and its node is lost."""
    calls: list[int] = []
    link = start(True, 1.5)
    order = {3: RankToFork({}, tmp_path / "rank.log")}
    assert list(link.fork(order, "NOBODY=1", False, lambda: calls.append(1))) == [3]
    assert len(calls) >= 3


def test_a_server_that_computes_is_waited_for(start: Start, tmp_path: Path) -> None:
    assert fork(start(True, 1.0), tmp_path) == [3]


def test_a_server_that_does_nothing_is_killed(start: Start, tmp_path: Path) -> None:
    link = start(False, 600.0)
    assert fork(link, tmp_path) == []
    assert link.close(60.0) == -9


def test_a_server_that_computes_for_ever_is_killed_at_last(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_client, "IMPORTING_PATIENCE_SECONDS", 1.0)
    link = start(True, 600.0)
    assert fork(link, tmp_path) == []
    assert link.close(60.0) == -9

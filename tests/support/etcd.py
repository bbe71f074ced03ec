"""An etcd cluster on this machine, whose members can be killed, stopped and started again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ftlaunch.spec.meeting_stores.etcd import EtcdSpec
from tests.support.agents import free_port
from tests.support.waiting import wait_for

ETCD = shutil.which("etcd")
NO_ETCD = "there is no etcd here (apt-get install etcd-server)"


def member_command(number: int, home: Path, clients: Sequence[str], peers: Sequence[str]) -> list[str]:
    """Return the command that starts a member.

    Args:
        number: the number of the member.
        home: the directory of the members' data.
        clients: the URL of each member for its clients.
        peers: the URL of each member for the other members.
    """
    assert ETCD is not None
    all_of_them = ",".join(f"m{other}={url}" for other, url in enumerate(peers))
    client, peer = clients[number], peers[number]
    return [
        ETCD, "--name", f"m{number}", "--data-dir", str(home / f"m{number}"), "--initial-cluster", all_of_them,
        "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
        "--initial-advertise-peer-urls", peer, "--logger", "zap", "--unsafe-no-fsync",
    ]  # fmt: skip


class EtcdCluster:
    """A cluster whose members are numbered from 0, and keep their data in memory."""

    def __init__(self, count: int = 3, tls: tuple[str, ...] = ()) -> None:
        """Start all members. tls: options of every member that make it speak https with its clients."""
        self.home = Path(tempfile.mkdtemp(prefix="etcd-", dir="/dev/shm"))
        self.ports = [free_port() for _ in range(count)]
        self._peers = [free_port() for _ in range(count)]
        self._tls = tls
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        for number in range(count):
            self.start(number)

    @property
    def endpoints(self) -> str:
        """The value for --rdzv-endpoint."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def spec(self) -> EtcdSpec:
        """The spec of a client without a password."""
        return EtcdSpec(tuple(("127.0.0.1", port) for port in self.ports))

    def start(self, number: int) -> None:
        """Start a member, or start it again with the data that it has written."""
        scheme = "https" if self._tls else "http"
        clients = [f"{scheme}://127.0.0.1:{port}" for port in self.ports]
        peers = [f"http://127.0.0.1:{port}" for port in self._peers]
        command = [*member_command(number, self.home, clients, peers), *self._tls]
        with (self.home / f"log{number}").open("ab") as log:
            self._running[number] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def leader(self) -> int:
        """Return the number of the leading member; wait for a leader that a majority follows."""

        def leads() -> int | None:
            for number, process in list(self._running.items()):
                if process.poll() is not None:  # another program has taken its port in the meantime
                    self.start(number)
            statuses = [status for number in self._running if (status := self._status(number)) is not None]
            leaders = {status["leader"] for status in statuses if int(status.get("leader", "0"))}
            if len(leaders) != 1 or len(statuses) <= len(self.ports) // 2:
                return None
            found = [number for number in self._running if self._member_id(number) in leaders]
            return found[0] + 1 if found else None

        return wait_for(leads, "a leader of etcd", 30.0) - 1

    def _status(self, number: int) -> dict[str, Any] | None:
        url = f"http://127.0.0.1:{self.ports[number]}/v3/maintenance/status"
        asked = urllib.request.Request(url, b"{}", method="POST")
        with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(asked, timeout=1.0) as answer:
            return dict(json.load(answer))
        return None

    def _member_id(self, number: int) -> str | None:
        status = self._status(number)
        return None if status is None else str(status["header"]["member_id"])

    def kill(self, number: int) -> None:
        """Kill a member by SIGKILL, which ends its connections."""
        process = self._running.pop(number)
        process.kill()
        process.wait()

    def stop(self, number: int) -> None:
        """Stop a member by SIGSTOP: it answers nobody, and its connections stay.

        Returns once the last of its threads has stopped.
        """
        assert self._running[number].poll() is None, (self.home / f"log{number}").read_text()
        self._running[number].send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._running[number].pid, os.WSTOPPED)

    def go_on(self, number: int) -> None:
        """Let a stopped member go on, by SIGCONT."""
        self._running[number].send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End all members, and delete their data."""
        for number in list(self._running):
            self.kill(number)
        shutil.rmtree(self.home)


@contextlib.contextmanager
def etcd_cluster(count: int = 3, tls: tuple[str, ...] = ()) -> Iterator[EtcdCluster]:
    """Yield a cluster of `count` members once a member leads. Skips the test without etcd."""
    if ETCD is None:
        pytest.skip(NO_ETCD)
    cluster = EtcdCluster(count, tls)
    try:
        if not tls:
            cluster.leader()
        yield cluster
    finally:
        cluster.close()

"""`ftctl dashboard` as a user starts it, and the requests of a browser."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.waiting import DEADLINE, wait_for

_LINK = re.compile(r"(http://\S+?:(\d+)/)(\?token=(\S+))?")


class Dashboard:
    """A dashboard in a process of its own; `client` yields a client with its cookie."""

    def __init__(self, home: Path, *words: str | Path, within: Sequence[str] = ()) -> None:
        """Start it, and wait for its link.

        Args:
            home: the working directory.
            words: arguments of the command.
            within: a command that executes the rest of its arguments in other surroundings.
        """
        self._said = home / f"dashboard_{len(list(home.glob('dashboard_*')))}"
        command = [*within, sys.executable, "-m", "ftlaunch.cli.ctl", "dashboard", *map(str, words)]
        with self._said.open("w") as file:
            self.process = subprocess.Popen(command, cwd=home, stdout=file, stderr=subprocess.STDOUT)
        match = wait_for(self._link, f"the link of the dashboard: {self.said}")
        self.at = match[1]
        self.port = int(match[2])
        self.token = match[4]
        self.link = match[0]

    def _link(self) -> re.Match[str] | None:
        assert self.process.poll() is None, self.said
        return _LINK.search(self.said)

    @property
    def said(self) -> str:
        return self._said.read_text()

    @contextmanager
    def client(self) -> Iterator[httpx.Client]:
        """Yield a client that has opened the link."""
        with httpx.Client(base_url=self.at, timeout=DEADLINE, trust_env=False, follow_redirects=True) as client:
            assert client.get("", params={"token": self.token}).status_code == 200
            yield client

    def close(self) -> int:
        """End it as Ctrl-C does; return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(DEADLINE)
        finally:
            self.process.kill()


def news(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """Yield the messages of a stream of server-sent events."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line[6:])


def order(client: httpx.Client, path: str, **words: Any) -> httpx.Response:
    """Send the request that a button of the page sends."""
    origin = str(client.base_url).rstrip("/")
    return client.post(path, json=words, headers={"origin": origin})


def write_token(path: Path, token: str, mode: int = 0o600) -> Path:
    path.write_text(token)
    path.chmod(mode)
    return path


def memory_of(pid: int) -> int:
    """Return the bytes of a process's memory, where shared memory counts in proportion (Pss)."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("Pss:"))) << 10


def processor_time(pid: int) -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

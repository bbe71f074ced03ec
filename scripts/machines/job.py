"""A job of several nodes on such machines: its agents, its journal, what its head says."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ftlaunch.history.journal import read_events
from ftlaunch.system.control_socket import SOCKET, ask

PORT = 29400


class Program(Protocol):
    """What runs on a machine."""

    def poll(self) -> int | None:
        """Its exit code once it has ended."""

    def wait(self, seconds: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""

    def send_signal(self, signum: int) -> None:
        """Signal it."""


class Place(Protocol):
    """What a job needs of a machine."""

    address: str

    def start(self, command: Sequence[str], cwd: Path, env: Mapping[str, str], **popen: Any) -> Program:
        """Start a program there."""

    def path(self, path: Path | str) -> Path:
        """The way from here to a file of the machine."""


class NodesJob:
    """One job in a folder of its own; every machine may have an agent of it, and the first has the head."""

    def __init__(
        self, machines: Sequence[Place], home: Path, name: str, nodes: int, command: Sequence[str], ranks: int = 2,
        port: int = PORT,
    ) -> None:  # fmt: skip
        """command: options of ftlaunch, the script, and its arguments."""
        self.machines, self.home, self.name, self.run_dir = machines, home, name, home / "run"
        home.mkdir(parents=True, exist_ok=True)
        self._launch = [
            sys.executable, "-m", "ftlaunch", "--nnodes", str(nodes), "--nproc-per-node", str(ranks),
            "--rdzv-endpoint", f"{machines[0].address}:{port}", "--job-id", name, "--run-dir", str(self.run_dir),
            "--no-report-page",
        ]  # fmt: skip
        self._command = command
        self.agents: dict[int, Program] = {}

    def start(
        self, number: int, *options: str, env: Mapping[str, str] | None = None, **popen: Any
    ) -> Program:  # fmt: skip
        """Start the agent of a machine; what it says goes to a file, unless popen says otherwise."""
        with self.terminal(number).open("ab") as out:
            streams = {"stdout": out, "stderr": out} | popen
            command = [*self._launch, *options, *self._command]
            place, environ = self.machines[number], {**os.environ, **(env or {})}
            self.agents[number] = place.start(command, self.home, environ, **streams)
        return self.agents[number]

    def terminal(self, number: int) -> Path:
        """What the agent of a machine has said; the head speaks where the first one does."""
        return self.home / f"terminal_{number}"

    def said(self, number: int) -> str:
        """The same, as text."""
        return self.terminal(number).read_text(errors="replace")

    def events(self, name: str) -> list[dict[str, Any]]:
        """The journal's events of one name."""
        try:
            return [event for event in read_events(self.run_dir) if event["event"] == name]
        except FileNotFoundError:
            return []

    def status(self) -> dict[str, Any] | None:
        """What the head says of the job, or None while nobody answers."""
        started = self.events("job_started")
        for machine in self.machines if started else ():
            with contextlib.suppress(OSError, ValueError):
                return ask(machine.path(Path(started[-1]["memory_dir"]) / SOCKET), {"do": "status"})
        return None

    def ranks_at(self, step: int) -> dict[int, int] | None:
        """rank -> pid, once every rank has made so many steps and the job runs."""
        status = self.status()
        if status is None or status["state"] != "running" or not status["ranks"]:
            return None
        ranks = status["ranks"]
        return {one["rank"]: one["pid"] for one in ranks} if all(one["step"] >= step for one in ranks) else None

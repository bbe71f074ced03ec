"""A job of several nodes on such machines: starts its agents, reads its journal, and asks its head."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ftlaunch.history.journal import EVENTS, read_events
from ftlaunch.system.control_socket import SOCKET, ask

PORT = 29400  # of the head


class Program(Protocol):
    """A program that runs on a machine."""

    def poll(self) -> int | None:
        """Return the exit code once the program has ended."""

    def wait(self, seconds: float | None = None) -> int:
        """Wait for the end; return the exit code. Raises subprocess.TimeoutExpired."""

    def send_signal(self, signum: int) -> None:
        """Send a signal to the program."""


class Place(Protocol):
    """The part of a machine that a job needs."""

    address: str

    def start(self, command: Sequence[str], cwd: Path, env: Mapping[str, str], **popen: Any) -> Program:
        """Start a program on the machine."""

    def path(self, path: Path | str) -> Path:
        """Return the path, from here, of a file of the machine."""

    def own(self, directory: Path) -> None:
        """Give the machine a disk of its own at a directory."""


class NodesJob:
    """One job in a folder of its own; every machine may have an agent, and the first machine has the head."""

    def __init__(
        self, machines: Sequence[Place], home: Path, name: str, nodes: int, command: Sequence[str], ranks: int = 2,
        port: int = PORT, meet: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Prepare the job.

        Args:
            machines: the machines.
            home: the folder, which is made.
            name: the id of the job.
            nodes: the number of nodes.
            command: further options of ftlaunch, the script, and its arguments.
            ranks: the number of ranks of each node.
            port: the port of the head.
            meet: options that say where the nodes meet; without them they meet on the first machine.
        """
        self.machines = machines
        self.home = home
        self.name = name
        self.run_dir = home / "run"
        home.mkdir(parents=True, exist_ok=True)
        meet = meet or ("--rdzv-endpoint", f"{machines[0].address}:{port}")
        self._launch = [
            sys.executable, "-m", "ftlaunch", "--nnodes", str(nodes), "--nproc-per-node", str(ranks), *meet,
            "--job-id", name, "--run-dir", str(self.run_dir), "--no-report-page",
        ]  # fmt: skip
        self._command = command
        self._has_own_disks = False
        self.agents: dict[int, Program] = {}

    def start(
        self, number: int, *options: str, env: Mapping[str, str] | None = None, **popen: Any
    ) -> Program:  # fmt: skip
        """Start the agent of a machine; its output goes to a file, unless `popen` says otherwise."""
        with self.terminal(number).open("ab") as out:
            streams = {"stdout": out, "stderr": out} | popen
            command = [*self._launch, *options, *self._command]
            environ = {**os.environ, **(env or {})}
            self.agents[number] = self.machines[number].start(command, self.home, environ, **streams)
        return self.agents[number]

    def terminal(self, number: int) -> Path:
        """Return the file with the output of a machine's agent; the head writes where the first agent does."""
        return self.home / f"terminal_{number}"

    def said(self, number: int) -> str:
        """Return the output of a machine's agent."""
        return self.terminal(number).read_text(errors="replace")

    def own_disks(self) -> None:
        """Give each machine a run dir of its own, at the same path."""
        self.run_dir.mkdir(parents=True)
        for machine in self.machines:
            machine.own(self.run_dir)
        self._has_own_disks = True

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the journal's events of one name, from the machine whose journal is the longest."""
        here = self.run_dir
        run_dirs = [machine.path(here) for machine in self.machines] if self._has_own_disks else [here]
        journals = []
        for run_dir in run_dirs:
            with contextlib.suppress(FileNotFoundError):
                journals.append(read_events(run_dir))
        newest = max(journals, key=len, default=[])
        return [event for event in newest if event["event"] == name]

    def keep_journal(self) -> None:
        """Copy the longest journal of machines with disks of their own to the run dir here, before the machines go."""
        journals = [machine.path(self.run_dir / EVENTS) for machine in self.machines]
        newest = max(filter(Path.exists, journals), key=lambda path: path.stat().st_size)
        shutil.copy(newest, self.run_dir)
        self._has_own_disks = False

    def status(self) -> dict[str, Any] | None:
        """Return the head's status of the job; None if nobody answers."""
        started = self.events("job_started")
        for machine in self.machines if started else ():
            with contextlib.suppress(OSError, ValueError):
                return ask(machine.path(Path(started[-1]["memory_dir"]) / SOCKET), {"do": "status"})
        return None

    def ranks_at(self, step: int) -> dict[int, int] | None:
        """Return each rank's pid once the job runs and every rank has made `step` steps; None before."""
        status = self.status()
        if status is None or status["state"] != "running" or not status["ranks"]:
            return None
        ranks = status["ranks"]
        if any(rank["step"] < step for rank in ranks):
            return None
        return {rank["rank"]: rank["pid"] for rank in ranks}

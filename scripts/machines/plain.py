"""Pretended machines where namespaces are not allowed: processes on 127.0.0.1, told apart by their environment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any


class PlainMachine:
    """A machine whose processes share a mark in their environment, and nothing else."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.address = "127.0.0.1"
        self._mark = f"FTLAUNCH_MACHINE={uuid.uuid4().hex}"

    def start(self, command: Sequence[str], cwd: Path, env: Mapping[str, str], **popen: Any) -> subprocess.Popen[Any]:
        """Start a program."""
        name, _, value = self._mark.partition("=")
        return subprocess.Popen(command, cwd=cwd, env={**env, name: value}, **popen)

    def path(self, path: Path | str) -> Path:
        """Return the path itself, because all machines share one file system."""
        return Path(path)

    def processes(self) -> dict[int, int]:
        """Return the pids of everything that was started here, directly or by others."""
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and self._mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = int(entry.name)
        return found

    def signal(self, pid: int, signum: int) -> None:
        """Send a signal to a process."""
        os.kill(pid, signum)

    def kill_all(self) -> None:
        """Kill everything."""
        while found := self.processes():
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def lose(self) -> None:
        """Kill everything. The kernel still closes the connections, which the other machines notice."""
        self.kill_all()


class PlainMachines:
    """Several pretended machines."""

    apart = False

    def __init__(self, count: int) -> None:
        self.all = [PlainMachine(number) for number in range(count)]

    def __getitem__(self, number: int) -> PlainMachine:
        return self.all[number]

    def __len__(self) -> int:
        return len(self.all)

    def __enter__(self) -> PlainMachines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        for machine in self.all:
            machine.kill_all()

"""One run of one launcher on machines of its own: starts it, disturbs it, and watches it by the notes of its ranks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import psutil
from machine import cpu_seconds
from machines.job import PORT
from machines.namespaces import Machines, Process

from ftlaunch.history.journal import read_events

JOB = Path(__file__).with_name("job.py")
NODES = 3
RANKS = 2  # on each machine
PATIENCE = 90.0  # seconds
_POLL_SECONDS = 0.002  # between two readings of the notes
_OF_THIS_SHELL = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")  # would slow the launchers down
_IDLE = 0.05  # processor seconds in a second: more than beats take, less than imports
_CALM = 3.0  # seconds before a fault, in which everything that warms up gets ready


class Failed(Exception):
    """The run did not get as far as it should; the message says what was missing."""


class Trial:
    """A run on three machines of two ranks, with further machines standing by if the launcher has standbys."""

    settings: ClassVar[Mapping[str, str]] = {}

    def __init__(self, home: Path, machines: Machines) -> None:
        """Prepare a run. home: a folder, which is made."""
        self.home = home
        self.machines = machines
        home.mkdir()
        self._notes = home / "notes"
        self._notes.touch()
        self.agents: dict[int, Process] = {}

    def command(self, number: int) -> Sequence[str]:
        """Return the command that starts the agent of a machine."""
        raise NotImplementedError

    def start(self, *numbers: int) -> float:
        """Start the agents of some machines; return when the first was started."""
        env = {name: value for name, value in os.environ.items() if name not in _OF_THIS_SHELL}
        env |= {"BENCH_NOTES": str(self._notes), "OMP_NUM_THREADS": "1", **self.settings}
        began = time.monotonic()
        for number in numbers:
            with (self.home / f"terminal_{number}").open("ab") as out:
                machine = self.machines[number]
                self.agents[number] = machine.start(self.command(number), self.home, env, stdout=out, stderr=out)
        return began

    def noted(self, what: str, since: float) -> dict[int, float]:
        """Return, for each rank, when it has made its first note of a kind since `since` (monotonic seconds)."""
        found: dict[int, float] = {}
        for line in self._notes.read_text().split("\n")[:-1]:
            kind, rank, _, at, _ = line.split()
            if kind == what and float(at) >= since:
                found.setdefault(int(rank), float(at))
        return found

    def ready(self, since: float, what: str) -> float:
        """Return when the last rank has become ready after `since`. Raises Failed."""
        self.wait(lambda: len(self.noted("ready", since)) == NODES * RANKS, what)
        return max(self.noted("ready", since).values())

    def kill_a_rank(self) -> float:
        """Order rank 1 to kill itself; return when it died. Raises Failed."""
        since = time.monotonic()
        self._notes.with_name("notes.kill").touch()
        self.wait(lambda: 1 in self.noted("dies", since), "a rank's death")
        return self.noted("dies", since)[1]

    def wait(self, ready: Callable[[], Any], what: str) -> None:
        """Wait until `ready()` is truthy. Raises Failed."""
        until = time.monotonic() + PATIENCE
        while not ready():
            if time.monotonic() > until:
                raise Failed(f"no {what} within {PATIENCE:.0f} s")
            time.sleep(_POLL_SECONDS)

    def calm(self) -> None:
        """Let the job train for some seconds."""
        time.sleep(_CALM)

    def settle(self, number: int) -> None:
        """Wait until a machine is idle, because its standby has warmed up. Raises Failed."""
        until = time.monotonic() + PATIENCE
        used = -1.0
        while (now := sum(cpu_seconds(pid) for pid in self.machines[number].processes().values())) > used + _IDLE:
            if time.monotonic() > until:
                raise Failed(f"the standby is not ready within {PATIENCE:.0f} s")
            used = now
            time.sleep(1.0)

    def process(self, number: int) -> psutil.Process:
        """Return the agent of a machine."""
        return psutil.Process(self.agents[number].pid)


class OurTrial(Trial):
    """A run of ftlaunch, where machines beyond the third stand by."""

    def command(self, number: int) -> Sequence[str]:
        rank = ("--node-rank", str(number)) if number < NODES and number not in self.agents else ()
        return (
            sys.executable, "-m", "ftlaunch", "--nnodes", str(NODES), "--nproc-per-node", str(RANKS), *rank,
            "--rdzv-endpoint", f"{self.machines[0].address}:{PORT}", "--run-dir", str(self.home / "run"), "--job-id",
            "bench", "--max-restarts", "50", "--max-without-progress", "1000", "--backoff-first", "1ms", str(JOB),
        )  # fmt: skip

    def stand_by(self, number: int) -> None:
        """Start an agent, and wait until it stands by and can fork its ranks. Raises Failed."""
        terminal = self.home / f"terminal_{number}"
        before = len(terminal.read_bytes()) if terminal.exists() else 0
        self.start(number)
        self.wait(lambda: b"this node stands by" in terminal.read_bytes()[before:], "standby")
        self.settle(number)

    def head(self) -> psutil.Process:
        """Return the process of the head, while the head is on the first machine."""
        *_, started = (event for event in read_events(self.home / "run") if event["event"] == "job_started")
        return psutil.Process(self.machines[0].processes()[started["pid"]])

    def replace_head(self) -> float:
        """Kill the head's process; return the seconds until another head has adopted the ranks. Raises Failed."""
        killed = time.monotonic()
        self.head().kill()
        self.wait(lambda: any(event["event"] == "attempt_adopted" for event in read_events(self.home / "run")), "head")
        adopted = time.monotonic()
        self.calm()
        if self.noted("ready", killed):
            raise Failed("ranks were started anew after the head's process was killed")
        return adopted - killed


class OneMachineTrial(OurTrial):
    """A run of ftlaunch with as many ranks on one machine, which shows their start without the cost of nodes."""

    def command(self, number: int) -> Sequence[str]:
        return (
            sys.executable, "-m", "ftlaunch", "--nproc-per-node", str(NODES * RANKS),
            "--run-dir", str(self.home / "run"), "--job-id", "bench", "--max-restarts", "50",
            "--max-without-progress", "1000", "--backoff-first", "1ms", str(JOB),
        )  # fmt: skip


class TheirTrial(Trial):
    """A run of torchrun, whose agent on the first machine has the store."""

    # Otherwise restarted ranks share a store with the ranks before them.
    settings: ClassVar[Mapping[str, str]] = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def command(self, number: int) -> Sequence[str]:
        meeting = f"{self.machines[0].address}:{PORT}", "--rdzv-conf", f"is_host={int(number == 0)}"
        return (
            sys.executable, "-m", "torch.distributed.run", "--nnodes", str(NODES), "--nproc-per-node", str(RANKS),
            "--rdzv-backend", "c10d", "--rdzv-id", "bench", "--local-addr", self.machines[number].address,
            "--max-restarts", "50", "--rdzv-endpoint", *meeting, str(JOB),
        )  # fmt: skip

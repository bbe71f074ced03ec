"""One run of one launcher on machines of its own: started, disturbed, watched through what its ranks note."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import psutil
from machines.job import PORT
from machines.namespaces import Machines, Process

from ftlaunch.history.journal import read_events

JOB = Path(__file__).with_name("job.py")
NODES, RANKS = 3, 2
PATIENCE = 90.0  # seconds
_LOOK = 0.002
_OF_THIS_SHELL = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")  # not of those who are measured
_IDLE = 0.05  # seconds of processor time in a second: beats, and no imports
_CALM = 3.0  # seconds for which nothing happens before something is done, so that what is warmed up is warm


def cpu_seconds(pid: int) -> float:
    """Of all threads so far, as the scheduler counts it; nothing of a process that has gone."""
    with suppress(OSError):
        return (
            sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9
        )
    return 0.0


class Failed(Exception):
    """The run did not get where it should; the message says where it was."""


class Trial:
    """Three machines of two ranks, and one that stands by where the launcher has standbys."""

    settings: ClassVar[Mapping[str, str]] = {}

    def __init__(self, home: Path, machines: Machines) -> None:
        self.home, self.machines = home, machines
        home.mkdir()
        self._notes = home / "notes"
        self._notes.touch()
        self.agents: dict[int, Process] = {}

    def command(self, number: int) -> Sequence[str]:
        """What is started on a machine."""
        raise NotImplementedError

    def start(self, *numbers: int) -> float:
        """Start the agents of some machines; when."""
        env = {name: value for name, value in os.environ.items() if name not in _OF_THIS_SHELL}
        env |= {"BENCH_NOTES": str(self._notes), "OMP_NUM_THREADS": "1", **self.settings}
        began = time.monotonic()
        for number in numbers:
            with (self.home / f"terminal_{number}").open("ab") as out:
                machine = self.machines[number]
                self.agents[number] = machine.start(self.command(number), self.home, env, stdout=out, stderr=out)
        return began

    def noted(self, what: str, since: float) -> dict[int, float]:
        """Rank -> when it has noted it for the first time, not before a time."""
        found: dict[int, float] = {}
        for line in self._notes.read_text().split("\n")[:-1]:
            kind, rank, _, at, _ = line.split()
            if kind == what and float(at) >= since:
                found.setdefault(int(rank), float(at))
        return found

    def ready(self, since: float, what: str) -> float:
        """When the last rank has become ready after a time. Raises Failed."""
        self.wait(lambda: len(self.noted("ready", since)) == NODES * RANKS, what)
        return max(self.noted("ready", since).values())

    def kill_a_rank(self) -> float:
        """When it died."""
        since = time.monotonic()
        self._notes.with_name("notes.kill").touch()
        self.wait(lambda: 1 in self.noted("dies", since), "a rank's death")
        return self.noted("dies", since)[1]

    def wait(self, ready: Callable[[], Any], what: str) -> None:
        """Raises Failed."""
        until = time.monotonic() + PATIENCE
        while not ready():
            if time.monotonic() > until:
                raise Failed(f"no {what} within {PATIENCE:.0f} s")
            time.sleep(_LOOK)

    def calm(self) -> None:
        """Let it train."""
        time.sleep(_CALM)

    def settle(self, number: int) -> None:
        """Wait until a machine has nothing to do: its standby is warm. Raises Failed."""
        until, used = time.monotonic() + PATIENCE, -1.0
        while (now := sum(cpu_seconds(pid) for pid in self.machines[number].processes().values())) > used + _IDLE:
            if time.monotonic() > until:
                raise Failed(f"the standby is not ready within {PATIENCE:.0f} s")
            used = now
            time.sleep(1.0)

    def process(self, number: int) -> psutil.Process:
        """The agent of a machine."""
        return psutil.Process(self.agents[number].pid)


class OurTrial(Trial):
    """ftlaunch: the fourth machine stands by."""

    def command(self, number: int) -> Sequence[str]:
        rank = ("--node-rank", str(number)) if number < NODES and number not in self.agents else ()
        return (
            sys.executable, "-m", "ftlaunch", "--nnodes", str(NODES), "--nproc-per-node", str(RANKS), *rank,
            "--rdzv-endpoint", f"{self.machines[0].address}:{PORT}", "--run-dir", str(self.home / "run"), "--job-id",
            "bench", "--max-restarts", "50", "--max-without-progress", "1000", "--backoff-first", "1ms", str(JOB),
        )  # fmt: skip

    def stand_by(self, number: int) -> None:
        """Start an agent, and wait until it stands by and its ranks can be forked. Raises Failed."""
        terminal = self.home / f"terminal_{number}"
        before = len(terminal.read_bytes()) if terminal.exists() else 0
        self.start(number)
        self.wait(lambda: b"this node stands by" in terminal.read_bytes()[before:], "standby")
        self.settle(number)

    def head(self) -> psutil.Process:
        """The head of the job, as long as it is on the first machine."""
        *_, started = (event for event in read_events(self.home / "run") if event["event"] == "job_started")
        return psutil.Process(self.machines[0].processes()[started["pid"]])

    def led_again(self) -> float:
        """Kill the head's process; seconds until another head has taken up the ranks. Raises Failed."""
        killed = time.monotonic()
        self.head().kill()
        self.wait(lambda: any(event["event"] == "attempt_adopted" for event in read_events(self.home / "run")), "head")
        adopted = time.monotonic()
        self.calm()
        if self.noted("ready", killed):
            raise Failed("ranks were started anew after the head's process was killed")
        return adopted - killed


class OneMachineTrial(OurTrial):
    """ftlaunch with as many ranks on one machine: what they take to start there, nodes do not add."""

    def command(self, number: int) -> Sequence[str]:
        return (
            sys.executable, "-m", "ftlaunch", "--nproc-per-node", str(NODES * RANKS),
            "--run-dir", str(self.home / "run"), "--job-id", "bench", "--max-restarts", "50",
            "--max-without-progress", "1000", "--backoff-first", "1ms", str(JOB),
        )  # fmt: skip


class TheirTrial(Trial):
    """torchrun, whose agent on the first machine has the store."""

    # Otherwise ranks that are started again share a store with those before them.
    settings: ClassVar[Mapping[str, str]] = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def command(self, number: int) -> Sequence[str]:
        meeting = f"{self.machines[0].address}:{PORT}", "--rdzv-conf", f"is_host={int(number == 0)}"
        return (
            sys.executable, "-m", "torch.distributed.run", "--nnodes", str(NODES), "--nproc-per-node", str(RANKS),
            "--rdzv-backend", "c10d", "--rdzv-id", "bench", "--local-addr", self.machines[number].address,
            "--max-restarts", "50", "--rdzv-endpoint", *meeting, str(JOB),
        )  # fmt: skip

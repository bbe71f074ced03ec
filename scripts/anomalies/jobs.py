"""The jobs in which calls are made to fail: how each job is started, and which of its processes is the victim."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
from tests.support.agents import free_port

from ftlaunch_contract.protocol import memory_root

_HERE = Path(__file__).parent
_PLAIN = _HERE / "ranks" / "plain.py"
_TRAINING = _HERE / "ranks" / "training.py"
_NODE_COUNT = 2  # nodes of a job with agents; further agents stand by
START_SECONDS = 30.0
Found = TypeVar("Found")


class Job:
    """One job in a directory of its own."""

    def __init__(self, scene: Scene, home: Path) -> None:
        """Prepare the job. home: an empty directory."""
        self.scene = scene
        self.home = home
        self.job_id = f"anomaly-{uuid.uuid4().hex[:8]}"
        self.tag = f"FT_ANOMALY={self.job_id}"
        self.started: list[subprocess.Popen[bytes]] = []
        self._port = free_port()

    def start(self) -> None:
        """Start the supervisor, or the agents; an agent that is to stand by starts once the ranks run."""
        for node in range(max(self.scene.agents, 1)):
            if node >= _NODE_COUNT:
                wait_for(lambda: self.is_running, START_SECONDS)
            self._start(node)

    def _start(self, node: int) -> None:
        scene = self.scene
        name, _, value = self.tag.partition("=")
        words = ["--run-dir", str(self.home / "run"), "--job-id", self.job_id, "--backoff-first", "0.05s"]
        if scene.agents:
            words += ["--nnodes", str(_NODE_COUNT), "--rdzv-endpoint", f"127.0.0.1:{self._port}"]
            words += ["--node-rank", str(node)] if node < _NODE_COUNT else []
        command = [sys.executable, "-m", "ftlaunch", *words, *scene.options]
        with (self.home / f"stderr_{len(self.started)}").open("w") as stderr:
            process = subprocess.Popen(
                [*command, str(scene.script), str(self.home), scene.how],
                env={**os.environ, **scene.environment, "XDG_STATE_HOME": str(self.home / "state"), name: value},
                cwd=self.home,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )
        self.started.append(process)

    def begin(self) -> None:
        """Let the waiting ranks begin."""
        (self.home / "begin").touch()

    def wait(self, seconds: float) -> list[int | None]:
        """Wait until everything that was started has ended; return the exit codes.

        The code of a process that has not ended in time is None.
        """
        deadline = time.monotonic() + seconds
        codes: list[int | None] = []
        for process in self.started:
            try:
                codes.append(process.wait(max(deadline - time.monotonic(), 0.01)))
            except subprocess.TimeoutExpired:
                codes.append(None)
        return codes

    # --- what is seen of it -----------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether ranks have been started."""
        return any(event["event"] == "attempt_started" for event in self.events())

    def events(self) -> list[dict[str, Any]]:
        """Return the events of the journal, without torn lines."""
        path = self.home / "run" / "events.jsonl"
        found = []
        for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    @property
    def said(self) -> str:
        """Everything that was written to the terminals."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.home.glob("stderr_*")))

    def memories(self) -> list[Path]:
        """Return the job's directories in memory."""
        return sorted(memory_root(os.getuid()).glob(f"{self.job_id}*"))

    def carriers(self) -> list[int]:
        """Return the pids of the job's processes, which all have the job's tag in their environment."""
        found = []
        for entry in os.scandir("/proc"):
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    environment = Path(entry.path, "environ").read_bytes()
                except OSError:
                    continue
                if self.tag.encode() in environment.split(b"\0"):
                    found.append(int(entry.name))
        return found

    def dispose(self) -> None:
        """Kill all processes that are left, and delete all memory that is left."""
        for pid in self.carriers():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self.started:
            process.wait()
        for left in self.memories():
            shutil.rmtree(left, ignore_errors=True)


def wait_for(ready: Callable[[], Found | None], seconds: float) -> Found | None:
    """Wait until `ready()` is truthy, and return the result; return None after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := ready()):
        if time.monotonic() > deadline:
            return None
        time.sleep(0.005)
    return found


def _child_of(parent: int, words: str) -> int | None:
    """Return the pid of the child whose command line contains some words, or None."""
    for child in psutil.Process(parent).children():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if any(words in part for part in child.cmdline()):
                return child.pid
    return None


def _head(job: Job) -> int | None:
    return next((int(event["pid"]) for event in job.events() if event["event"] == "job_started"), None)


@dataclass(frozen=True)
class Scene:
    """A kind of job, and the process in it whose calls fail.

    Attributes:
        find: returns the pid of the victim, or None if the process does not exist yet.
        script: the script of the ranks.
        how: the argument HOW of ranks/training.py.
        options: options of ftlaunch.
        environment: variables of the job's environment.
        agents: the number of agents; 0 for a job of one node without agents.
        idle: whether the victim must wait for a request before calls fail, so that its imports are over.
        new_threads: whether calls fail in threads that begin later, too. The victim must start no processes.
    """

    find: Callable[[Job], int | None]
    script: Path = _TRAINING
    how: str = "rank"
    options: Sequence[str] = ("--nproc-per-node", "2", "--no-warm", "--memory-interval", "1")
    environment: Mapping[str, str] = field(default_factory=dict)
    agents: int = 0
    idle: bool = False
    new_threads: bool = False

    def victim(self, job: Job) -> int | None:
        """Return the pid of the process whose calls are to fail; None if it does not exist yet or is not ready."""
        pid = self.find(job)
        if pid is None or not self.idle:
            return pid
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if "pipe" in Path(f"/proc/{pid}/wchan").read_text():
                return pid
        return None

    @property
    def job(self) -> tuple[object, ...]:
        """A key that is equal for two scenes exactly if their processes can be watched in one job."""
        return self.script, self.how, tuple(self.options), tuple(sorted(self.environment.items())), self.agents

    @property
    def trains(self) -> bool:
        """Whether the ranks train, and the hooks keep their state."""
        return self.script == _TRAINING


# On a busy machine a node may get no processor time for seconds. A lost node is noticed by its closed connection.
_NODES = (
    "--nproc-per-node", "1", "--no-warm", "--memory-interval", "1", "--node-timeout", "8s", "--node-wait", "20s",
    "--grace", "5s",
)  # fmt: skip
_COPIES = (*_NODES, "--peer-interval", "1")
_WITHOUT_TORCH = {"PYTHONPATH": str(_HERE / "without_torch")}

SCENES: Mapping[str, Scene] = {
    "supervisor": Scene(lambda job: job.started[0].pid, _PLAIN, options=("--nproc-per-node", "2", "--no-warm")),
    "supervisor-saving": Scene(lambda job: job.started[0].pid),
    "supervisor-hang": Scene(
        lambda job: job.started[0].pid, how="hang",
        options=(
            "--nproc-per-node", "2", "--no-warm", "--memory-interval", "1",
            "--hang-timeout", "1s", "--startup-timeout", "10m",
        ),
    ),
    "fork-server": Scene(
        lambda job: _child_of(job.started[0].pid, "fork_server.py"), _PLAIN,
        options=("--nproc-per-node", "2", "--warm"), environment=_WITHOUT_TORCH,
    ),
    "saver": Scene(lambda job: _child_of(job.started[0].pid, "ftlaunch.checkpoints.saver"), idle=True),
    "agent": Scene(lambda job: job.started[1].pid, options=_NODES, agents=2),
    "head": Scene(_head, options=_NODES, agents=2),
    "head-node-lost": Scene(_head, how="node", options=_COPIES, agents=3),
    "agent-node-lost": Scene(lambda job: job.started[0].pid, how="node", options=_COPIES, agents=3),
    "copier": Scene(
        lambda job: _child_of(job.started[0].pid, "ftlaunch.nodes.peers.copier"), how="node", agents=3,
        options=_COPIES, idle=True, new_threads=True,
    ),
}  # fmt: skip
"""the name of the process -> its scene"""

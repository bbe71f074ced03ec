"""The jobs in which calls are made to fail: how each is started, and which of its processes is the victim."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from ftlaunch_contract.protocol import memory_root

_HERE = Path(__file__).parent
_PLAIN, _TRAINING = _HERE / "ranks" / "plain.py", _HERE / "ranks" / "training.py"
_PORTS = range(10_000, 30_000)
_NODE_COUNT = 2  # of a job that has agents; more of them stand by
START_SECONDS = 30.0
Found = TypeVar("Found")


class Job:
    """One job in a directory of its own."""

    def __init__(self, scene: Scene, home: Path) -> None:
        """home: an empty directory."""
        self.scene, self.home = scene, home
        self.job_id = f"anomaly-{uuid.uuid4().hex[:8]}"
        self.tag = f"FT_ANOMALY={self.job_id}"
        self.started: list[subprocess.Popen[bytes]] = []
        self._port = _free_port()

    def start(self) -> None:
        """Start the supervisor, or one agent for each node; one that is to stand by comes when the ranks run."""
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
        """Let the ranks go on that wait for this word."""
        (self.home / "begin").touch()

    def wait(self, seconds: float) -> list[int | None]:
        """The exit codes of what was started; None: it has not ended in time."""
        deadline, codes = time.monotonic() + seconds, list[int | None]()
        for process in self.started:
            try:
                codes.append(process.wait(max(deadline - time.monotonic(), 0.01)))
            except subprocess.TimeoutExpired:
                codes.append(None)
        return codes

    # --- what is seen of it -----------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether the ranks were started."""
        return any(event["event"] == "attempt_started" for event in self.events())

    def events(self) -> list[dict[str, Any]]:
        """Read the journal's events."""
        path, found = self.home / "run" / "events.jsonl", []
        for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    @property
    def said(self) -> str:
        """What the terminals were told."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.home.glob("stderr_*")))

    def memories(self) -> list[Path]:
        """The job's directories in memory."""
        return sorted(memory_root(os.getuid()).glob(f"{self.job_id}*"))

    def carriers(self) -> list[int]:
        """The living processes of the job, which all have its tag in their environment."""
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
        """End what is left alive, and remove what is left in memory."""
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
    """Wait until there is something, and return it; None where there is nothing in time."""
    deadline = time.monotonic() + seconds
    while not (found := ready()):
        if time.monotonic() > deadline:
            return None
        time.sleep(0.005)
    return found


def _free_port() -> int:
    """A port at which nobody listens, and that the system gives to nobody who asks for any."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _child_of(parent: int, words: str) -> int | None:
    """The child of a process whose command line has these words."""
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

    how: what ranks/training.py is told. agents: 0: the job has one node, and no agent. idle: the victim waits for a
    request before anything is made to fail: what it imports is behind it. new_threads: threads that begin later are the
    victim's, too, and its children are no processes.
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
        """The process whose calls are to fail; None: it is not there yet, or not ready."""
        pid = self.find(job)
        if pid is None or not self.idle:
            return pid
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if "pipe" in Path(f"/proc/{pid}/wchan").read_text():
                return pid
        return None

    @property
    def job(self) -> tuple[object, ...]:
        """What is the same of two processes of one job."""
        return self.script, self.how, tuple(self.options), tuple(sorted(self.environment.items())), self.agents

    @property
    def trains(self) -> bool:
        """Whether the state of the ranks is kept."""
        return self.script == _TRAINING


# a busy machine gives a node nothing for seconds; a node that is really gone is seen by its closed connection
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
"""by name of the process"""

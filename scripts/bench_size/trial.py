"""One job of many pretended nodes: its head, the processes of its agents, and the faults that befall them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from ftlaunch.history.journal import read_events
from ftlaunch.memory.directory import memory_dir, remove_memory
from ftlaunch.nodes.agent.head.starter import START, SUCCEED
from ftlaunch.system.control_socket import SOCKET
from ftlaunch.system.ports import free_port

HERE = Path(__file__).parent
PATIENCE = 120.0  # seconds
_POLL_SECONDS = 0.02  # between two questions to the agents


class Failed(Exception):
    """The job did not get as far as it should; the message says what was missing."""


class AgentsProcess:
    """A process of pretended agents (agents.py)."""

    def __init__(self, begin: Mapping[str, Any], errors: Path) -> None:
        """Start the process. begin: as `agents.Agents` takes it. errors: the file for standard error."""
        with errors.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "agents.py"), json.dumps(begin)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out, text=True, bufsize=1,
            )  # fmt: skip

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """Give an order, and return the answer. Raises Failed if the process has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"the process of the agents has ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait()


class Trial:
    """One job, with its head."""

    def __init__(
        self,
        home: Path,
        nodes: int,
        ranks: int = 8,
        *,
        standbys: int = 2,
        processes: int = 2,
        steps: float = 1.0,
        timeout: float = 10.0,
        metrics: bool = False,
        run_dir: Path | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """Prepare the job in an empty directory.

        Args:
            home: the directory.
            nodes: the number of nodes of the job.
            ranks: the number of ranks of each node.
            standbys: the number of agents that stand by.
            processes: the number of processes that run the agents.
            steps: seconds of a step of the ranks; 0 for no steps.
            timeout: seconds of silence after which a node counts as lost.
            metrics: whether an exporter serves metrics, with those of each rank.
            run_dir: the run dir, if it is not below `home`.
            options: further options of ftlaunch.
        """
        self.home = home
        self.nodes = nodes
        self.ranks = ranks
        self.standbys = standbys
        self._processes = processes
        self._steps = steps
        self.timeout = timeout
        self.run_dir = home / "run" if run_dir is None else run_dir
        self._job = f"size-{os.getpid()}-{nodes}"
        script = home / "pretended.py"
        script.write_text("raise SystemExit('no rank of this job is a process')\n")
        job = home / "job.yaml"
        self.metrics_port = free_port("127.0.0.1") if metrics else 0
        spec: dict[str, Any] = {"script": str(script)}
        if metrics:
            spec["metrics"] = {"port": self.metrics_port, "ranks": True, "linger": "0s"}
        job.write_text(json.dumps(spec))
        endpoint = f"127.0.0.1:{free_port('127.0.0.1')}"
        self._command = [
            "--nnodes", str(nodes), "--nproc-per-node", str(ranks), "--rdzv-endpoint", endpoint,
            "--run-dir", str(self.run_dir), "--job-id", self._job, "--max-restarts", "1000", "--max-without-progress",
            "1000", "--isolate-after", "off", "--backoff-first", "1ms", "--backoff-max", "1ms", "--storage-interval",
            "off", "--memory-interval", "1", "--peer-interval", "0", "--node-timeout", f"{timeout:g}s", *options,
            str(job),
        ]  # fmt: skip
        self.agents: list[AgentsProcess] = []
        self._lost = 0  # agents that have vanished or fallen silent
        self._heads: list[subprocess.Popen[str]] = []

    # --- beginning and ending ---------------------------------------------------------------------------------

    def start_head(self, order: bytes = START) -> float:
        """Start a head, and wait until it leads; return when it was started. Raises Failed."""
        began = time.monotonic()
        with (self.home / "head").open("ab") as out:
            command = [sys.executable, str(HERE / "head.py"), order.decode(), "0", *self._command]
            head = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=out, text=True)
        self._heads.append(head)
        assert head.stdout is not None
        if not select.select([head.stdout], [], [], PATIENCE)[0] or not (line := head.stdout.readline()):
            raise Failed(f"no head was started:\n{self.said()}")
        if int(line) != head.pid:
            raise Failed(f"the head says that it is {line.strip()}:\n{self.said()}")
        return began

    def start_agents(self) -> float:
        """Start all agents, and wait until all nodes are told to start their ranks; return when. Raises Failed."""
        count = self.nodes + self.standbys
        shares = [count // self._processes + (each < count % self._processes) for each in range(self._processes)]
        first = 0
        for number, share in enumerate(shares):
            begin = {"command": self._command, "first": first, "count": share, "steps": self._steps}
            self.agents.append(AgentsProcess(begin, self.home / f"agents_{number}"))
            first += share
        self.wait_starts(1, self.nodes)
        return max(found["started"] for found in self.read_summaries())

    @property
    def socket(self) -> Path:
        """The path of the head's control socket."""
        return memory_dir(self._job) / SOCKET

    @property
    def head(self) -> psutil.Process:
        """The process of the newest head."""
        return psutil.Process(self._heads[-1].pid)

    def lose_agent(self, order: str, agent: int) -> float:
        """Have an agent of the first process `die` or `fall silent`; return when it did."""
        self._lost += 1
        return float(self.agents[0].ask(order, agent=agent)["at"])

    def succeed_head(self) -> tuple[float, float, float]:
        """Kill the head, and start another one as an agent of the same machine does.

        Returns:
            When the head was killed; when the new head said that it leads, which includes the start of Python that a
            forked head does not need; and when the last agent had its welcome.
        """
        terms = max(int(term) for found in self.read_summaries() for term in found["terms"])
        killed = time.monotonic()
        self._heads[-1].kill()
        self._heads[-1].wait()
        self.start_head(SUCCEED)
        started = time.monotonic()
        count = self.nodes + self.standbys - self._lost

        def met() -> bool:
            welcomes = [answer["terms"] for answer in self.read_summaries()]
            newer = sum(number for counts in welcomes for term, number in counts.items() if int(term) > terms)
            return newer >= count

        self.wait(met, "welcome of all agents by the new head")
        return killed, started, max(found["met"] for found in self.read_summaries())

    def finish(self) -> float:
        """Bring the training of all ranks to its end; return the seconds until the head has ended. Raises Failed."""
        began = time.monotonic()
        for process in self.agents:
            process.ask("finish")
        try:
            code = self._heads[-1].wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failed(f"the head has not ended:\n{self.said()}") from None
        if code:
            raise Failed(f"the head has ended with {code}:\n{self.said()}")
        return time.monotonic() - began

    def close(self) -> None:
        """Kill all processes that are left, and remove the memory that is left."""
        for process in self.agents:
            process.close()
        for head in self._heads:
            if head.poll() is None:
                head.send_signal(signal.SIGKILL)
            head.wait()
        if memory_dir(self._job).exists():
            remove_memory(memory_dir(self._job))

    # --- looking ----------------------------------------------------------------------------------------------

    def wait(self, ready: Callable[[], Any], what: str, patience: float = PATIENCE) -> None:
        """Wait until `ready()` is truthy, for at most `patience` seconds. Raises Failed."""
        until = time.monotonic() + patience
        while not ready():
            if time.monotonic() > until:
                raise Failed(f"no {what} within {patience:.0f} s: {self.read_summaries()}\n{self.said()}")
            if self._heads[-1].poll() is not None:
                raise Failed(f"the head has ended with {self._heads[-1].returncode}:\n{self.said()}")
            time.sleep(_POLL_SECONDS)

    def wait_starts(self, starts: int, count: int, patience: float = PATIENCE) -> None:
        """Wait until `count` agents have been told at least `starts` times to start their ranks. Raises Failed."""

        def started() -> bool:
            answers = [answer["starts"] for answer in self.read_summaries()]
            informed = sum(agents for counts in answers for times, agents in counts.items() if int(times) >= starts)
            return informed >= count

        self.wait(started, f"start no. {starts} of {count} nodes", patience)

    def wait_left(self, since: float, count: int) -> None:
        """Wait until `count` agents have been told after `since` to let their ranks leave. Raises Failed."""

        def left() -> bool:
            return sum(int(answer["left since"]) for answer in self.read_summaries(since)) >= count

        self.wait(left, f"orders to {count} nodes to let their ranks leave")

    def read_summaries(self, since: float = 0.0) -> list[dict[str, Any]]:
        """Return the summary that each process gives of its agents. since: for `left since`, in monotonic seconds."""
        return [process.ask("look", since=since) for process in self.agents]

    def said(self) -> str:
        """Return the end of what heads and agents have written to standard error."""
        names = ["head", *(f"agents_{number}" for number in range(len(self.agents)))]
        return "\n".join((self.home / name).read_text()[-3000:] for name in names)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the journal's events of one name."""
        return [event for event in read_events(self.run_dir) if event["event"] == name]

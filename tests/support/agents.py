"""Jobs of several nodes on this machine: one agent for each node, with an own memory directory and terminal."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from ftlaunch.system import ports
from ftlaunch_contract.pages.page import Page, page_path
from ftlaunch_contract.protocol import memory_root
from tests.support.harness import TINY, FtJob
from tests.support.leftovers import alive, carriers
from tests.support.waiting import DEADLINE, wait_for

_CLONE_NEWUTS = 0x04000000
PATIENT = "--node-timeout", "20s"
"""options of a job whose nodes must not be lost: on a busy machine a node may be silent for some seconds"""


def free_port() -> int:
    """Return a port of the loopback at which nobody listens, chosen at random because tests run in parallel."""
    return ports.free_port("127.0.0.1")


class NodesJob(FtJob):
    """One job of several agents; agent `n` is the one that was started as the n-th, on whatever node."""

    def __init__(self, home: Path, *, nodes: int = 2, ranks: int = 2) -> None:
        """Prepare a job without starting agents.

        Args:
            home: a directory for files.
            nodes: the number of nodes.
            ranks: the number of ranks of each node.
        """
        super().__init__(home)
        self.nodes = nodes
        self.ranks = ranks
        self.port = free_port()
        self.options: tuple[str, ...] = ("--grace", "3s")
        self.env: dict[str, str] = {}
        self.script: Path = TINY
        self.words = ("--steps", "30")
        """arguments of tiny.py besides `--out`"""
        self.etcd: str | None = None
        """the members of the etcd in which the nodes meet; None if they meet at `port`"""
        self.range = str(nodes)
        """the value of --nnodes"""

    # --- agents -----------------------------------------------------------------------------------------------

    def agent(self, *more: str, words: tuple[str, ...] | None = None, env: Mapping[str, str] | None = None,
              ranks: int | None = None, host: str | None = None,
              enter: Callable[[], None] | None = None) -> subprocess.Popen[str]:  # fmt: skip
        """Start an agent.

        Args:
            more: options of this agent in addition to `options`.
            words: arguments of the script in place of `words` of the job.
            env: variables of this agent's environment in addition to `env` of the job.
            ranks: the number of ranks in place of `ranks` of the job.
            host: the host name of a UTS namespace of its own, which needs root; None stays on this host.
            enter: called first in the new process.
        """
        enter = enter if host is None else on_host(host)
        meets_at = f"127.0.0.1:{self.port}" if self.etcd is None else self.etcd
        backend = "c10d" if self.etcd is None else "etcd"
        where = ("--nnodes", self.range, "--rdzv-endpoint", meets_at, "--rdzv-backend", backend)
        return self.start(
            *where, *self.options, *more, script=self.script, **({} if enter is None else {"preexec_fn": enter}),
            args=("--out", str(self.out), *(self.words if words is None else words)),
            env={"GLOO_SOCKET_IFNAME": "lo", **self.env, **(env or {})},
            ranks=self.ranks if ranks is None else ranks,
        )  # fmt: skip

    def begin(self, *more: str) -> list[subprocess.Popen[str]]:
        """Start the agents of all nodes, each with the number of its node. more: options of all agents."""
        return [self.agent("--node-rank", str(node), *more) for node in range(self.nodes)]

    def codes(self, seconds: float = DEADLINE) -> list[int]:
        """Wait for the end of all agents and of the newest head; return the agents' exit codes.

        If the agent that started the head is dead, the head may write its last words after all agents have ended.

        Args:
            seconds: the time for all ends together.
        """
        deadline = time.monotonic() + seconds
        for number, agent in enumerate(self.supervisors):
            try:
                agent.wait(max(deadline - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"agent {number} did not end:\n{self.transcript}") from None
        self.wait_gone([int(started["pid"]) for started in self.events("job_started")[-1:]])
        return [agent.returncode for agent in self.supervisors]

    def said(self, number: int) -> str:
        """Return what an agent has written to its terminal, with the words of a head that the agent has started."""
        return (self.home / f"stderr_{number}").read_text()

    @property
    def transcript(self) -> str:
        """What all agents have written to their terminals, and the journal: the message of a failing test."""
        texts = [f"--- agent {number}\n{self.said(number)}" for number in range(len(self.supervisors))]
        return "\n".join([*texts, "--- journal", self.journal_text])

    def wait_said(self, number: int, words: str, seconds: float = DEADLINE) -> None:
        """Wait until an agent has written some words to its terminal."""
        wait_for(lambda: words in self.said(number), f"{words!r} of agent {number}", seconds)

    # --- the head ---------------------------------------------------------------------------------------------

    @property
    def head(self) -> int:
        """The pid of the head that was started last."""
        return int(self.wait_event("job_started", len(self.events("job_started")) or 1)["pid"])

    @property
    def speaker(self) -> int:
        """The number of the agent that has started the head, and on whose terminal the head writes."""
        return int(os.readlink(f"/proc/{self.head}/fd/2").rpartition("_")[2])

    def wait_event(self, name: str, count: int = 1, seconds: float = DEADLINE) -> dict[str, Any]:
        """Wait for the `count`-th event of a name, as long as an agent lives; return the event."""

        def there() -> dict[str, Any] | None:
            over = all(agent.poll() is not None for agent in self.supervisors)
            events = self.events(name)
            assert len(events) >= count or not over, f"all agents ended without {name}:\n{self.transcript}"
            return events[count - 1] if len(events) >= count else None

        return wait_for(there, f"event {name} no. {count}", seconds)

    def wait_step(self, step: int) -> dict[str, Any]:
        """Wait until all ranks have completed `step` steps; return the head's status at that moment."""

        def reached() -> dict[str, Any] | None:
            status = self.status()
            if status and status["ranks"] and all(rank["step"] >= step for rank in status["ranks"]):
                return status
            assert any(agent.poll() is None for agent in self.supervisors), f"all agents ended:\n{self.transcript}"
            return None

        return wait_for(reached, f"step {step}")

    def wait_joined(self, count: int) -> None:
        """Wait until the head has connections from `count` agents."""
        head = psutil.Process(self.head)

        def joined() -> bool:
            connections = [each for each in head.net_connections("tcp") if each.laddr and each.laddr.port == self.port]
            return sum(each.status == psutil.CONN_ESTABLISHED for each in connections) >= count

        wait_for(joined, f"{count} agents at the head")

    def wait_held(self, step: int) -> None:
        """Wait until a fault that never ends holds all ranks in step `step`, and the memory holds this step."""
        self.wait_step(step)

        def fired() -> list[str]:
            found = self.fired()
            incidents = self.events("incident")
            assert found or not incidents, f"an incident came before the fault: {incidents}\n{self.transcript}"
            return found

        wait_for(fired, "the fault")
        pages = [Page(page_path(self.memory_of(node), rank)) for node in range(self.nodes) for rank in self.own(node)]
        wait_for(lambda: all(step in page.slot_steps() for page in pages), f"snapshots of step {step}")
        for page in pages:
            page.close()

    def own(self, node: int) -> range:
        """Return the ranks of the node with a `--node-rank`."""
        return range(node * self.ranks, (node + 1) * self.ranks)

    # --- nodes ------------------------------------------------------------------------------------------------

    def memory_of(self, node: int) -> Path:
        """Return the memory directory of the agent with a `--node-rank`."""
        return memory_root(os.getuid()) / f"{self.job_id}.node{node}"

    def ranks_of(self, node: int) -> list[int]:
        """Return the pids of a node's ranks."""
        status = self.status()
        assert status is not None, self.transcript
        pids = [rank["pid"] for rank in status["ranks"] if rank["rank"] in self.own(node)]
        assert len(pids) == self.ranks, status
        assert all(pids), status
        return pids

    def wait_gone(self, pids: list[int], seconds: float = DEADLINE) -> None:
        """Wait until none of some processes lives."""
        wait_for(lambda: not any(map(alive, pids)), f"the end of {pids}", seconds)

    def assert_same_end(self, undisturbed: FtJob) -> None:
        """Check that all losses of all ranks and the final state equal those of an undisturbed job, bit for bit."""
        ranks = range(self.nodes * self.ranks)
        for rank in ranks:
            assert self.losses(rank) == undisturbed.losses(rank), f"rank {rank}"
        assert self.final() == undisturbed.final()
        assert len(self.final()) == len(ranks)

    def resumed(self) -> tuple[str, int, int]:
        """Return the source of the last attempt's state, the step, and the number of lost steps."""
        last = self.events("resumed")[-1]
        return last["source"], last["step"], last["steps_lost"]

    # --- the end ----------------------------------------------------------------------------------------------

    def memories(self) -> list[str]:
        """Return the names of the job's directories in memory, without the job's id."""
        root = memory_root(os.getuid())
        found = [path.name for path in root.iterdir() if path.name.startswith(self.job_id)] if root.exists() else []
        return sorted(name.removeprefix(self.job_id) for name in found)

    def assert_clean(self, *memories: str) -> None:
        """Check that no process of the job is left, and no directory in memory but some: .node0, .node1."""
        wait_for(lambda: not carriers(self.tag), "the end of all processes of the job", 10.0)
        assert self.memories() == sorted(memories), self.transcript

    def dispose(self) -> None:
        """Kill all processes and delete all memory that the test has left."""
        for pid in carriers(self.tag):  # SIGKILL ends stopped processes, too
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        super().dispose()
        wait_for(lambda: not carriers(self.tag), "the end of what was killed", 10.0)
        for name in self.memories():
            shutil.rmtree(memory_root(os.getuid()) / (self.job_id + name), ignore_errors=True)


def on_host(name: str) -> Callable[[], None]:
    """Return a `preexec_fn` for Popen that gives the new process a host name of its own."""

    def unshare() -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUTS):
            raise OSError(ctypes.get_errno(), "unshare")
        socket.sethostname(name)

    return unshare


@contextlib.contextmanager
def occupied_port() -> Iterator[int]:
    """Yield a port at which something listens that is no head and never answers."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", free_port()))
        other.listen(8)
        yield int(other.getsockname()[1])

"""Runs jobs of several nodes: one agent a node, all on this machine, each with an endpoint, a memory, a terminal."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from ftlaunch_contract.pages.page import Page, page_path
from ftlaunch_contract.protocol import memory_root
from tests.support.harness import TINY, FtJob
from tests.support.leftovers import alive, carriers
from tests.support.waiting import DEADLINE, wait_for

_PORTS = range(10_000, 30_000)  # below those that the system gives to whoever asks for any
_CLONE_NEWUTS = 0x04000000
PATIENT = "--node-timeout", "20s"
"""for a job whose nodes must not fall silent: on a busy machine, one may come to nothing for some seconds"""


def free_port() -> int:
    """A port of the loopback at which nobody listens; tests that run beside this one choose others."""
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


class NodesJob(FtJob):
    """One job of several agents; agent `n` is the n-th that was started, whatever its node."""

    def __init__(self, home: Path, *, nodes: int = 2, ranks: int = 2) -> None:
        """ranks: of each node."""
        super().__init__(home)
        self.nodes, self.ranks, self.port = nodes, ranks, free_port()
        self.options: tuple[str, ...] = ("--grace", "3s")
        self.env: dict[str, str] = {}
        self.script: Path = TINY
        self.words = ("--steps", "30")
        """what tiny.py is told besides `--out`"""
        self.etcd: str | None = None
        """its members, where the nodes meet in it and not at `port`"""
        self.range = str(nodes)
        """--nnodes"""

    # --- agents -----------------------------------------------------------------------------------------------

    def agent(self, *more: str, words: tuple[str, ...] | None = None, env: Mapping[str, str] | None = None,
              ranks: int | None = None, host: str | None = None,
              enter: Callable[[], None] | None = None) -> subprocess.Popen[str]:  # fmt: skip
        """Start an agent. more: options of it alone; words, env, ranks: of it, where it is to be another one.

        host: the name of its machine, where it is to have one of its own; needs root. enter: what its process does at
        first.
        """
        enter = enter if host is None else on_host(host)
        endpoint = ("--rdzv-endpoint", f"127.0.0.1:{self.port}" if self.etcd is None else self.etcd)
        where = ("--nnodes", self.range, *endpoint, "--rdzv-backend", "c10d" if self.etcd is None else "etcd")
        return self.start(
            *where, *self.options, *more, script=self.script, **({} if enter is None else {"preexec_fn": enter}),
            args=("--out", str(self.out), *(self.words if words is None else words)),
            env={"GLOO_SOCKET_IFNAME": "lo", **self.env, **(env or {})},
            ranks=self.ranks if ranks is None else ranks,
        )  # fmt: skip

    def begin(self, *more: str) -> list[subprocess.Popen[str]]:
        """Start the agents of all nodes, each with the number of its node. more: options of all of them."""
        return [self.agent("--node-rank", str(node), *more) for node in range(self.nodes)]

    def codes(self, seconds: float = DEADLINE) -> list[int]:
        """The exit codes of all agents that were started; waits for their ends, and the head's, `seconds` for them all.

        The head's: where the agent that had started it is dead, its last words may come after the ends of all others.
        """
        deadline = time.monotonic() + seconds
        for number, agent in enumerate(self.supervisors):
            try:
                agent.wait(max(deadline - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"agent {number} did not end:\n{self.told}") from None
        self.wait_gone([int(started["pid"]) for started in self.events("job_started")[-1:]])
        return [agent.returncode for agent in self.supervisors]

    def said(self, number: int) -> str:
        """What an agent, and the head where it has started it, has told its terminal."""
        return (self.home / f"stderr_{number}").read_text()

    @property
    def told(self) -> str:
        """What all agents have told their terminals, and the journal: for a test that fails."""
        texts = [f"--- agent {number}\n{self.said(number)}" for number in range(len(self.supervisors))]
        return "\n".join([*texts, "--- journal", self.journal_text])

    def wait_said(self, number: int, words: str, seconds: float = DEADLINE) -> None:
        """Wait until an agent has said something."""
        wait_for(lambda: words in self.said(number), f"{words!r} of agent {number}", seconds)

    # --- the head ---------------------------------------------------------------------------------------------

    @property
    def head(self) -> int:
        """Pid of the head that was started last."""
        return int(self.wait_event("job_started", len(self.events("job_started")) or 1)["pid"])

    @property
    def speaker(self) -> int:
        """Number of the agent that has started the head, and whose terminal it has."""
        return int(os.readlink(f"/proc/{self.head}/fd/2").rpartition("_")[2])

    def wait_event(self, name: str, count: int = 1, seconds: float = DEADLINE) -> dict[str, Any]:
        """Wait for the `count`-th event of a name, as long as an agent lives."""

        def there() -> dict[str, Any] | None:
            over = all(agent.poll() is not None for agent in self.supervisors)
            events = self.events(name)
            assert len(events) >= count or not over, f"all agents ended without {name}:\n{self.told}"
            return events[count - 1] if len(events) >= count else None

        return wait_for(there, f"event {name} no. {count}", seconds)

    def wait_step(self, step: int) -> dict[str, Any]:
        """Wait until all ranks have completed `step` steps; the head's status then."""

        def reached() -> dict[str, Any] | None:
            status = self.status()
            if status and status["ranks"] and all(rank["step"] >= step for rank in status["ranks"]):
                return status
            assert any(agent.poll() is None for agent in self.supervisors), f"all agents ended:\n{self.told}"
            return None

        return wait_for(reached, f"step {step}")

    def wait_joined(self, count: int) -> None:
        """Wait until the head has so many connections from agents."""
        head = psutil.Process(self.head)

        def joined() -> bool:
            ours = [one for one in head.net_connections("tcp") if one.laddr and one.laddr.port == self.port]
            return sum(one.status == psutil.CONN_ESTABLISHED for one in ours) >= count

        wait_for(joined, f"{count} agents at the head")

    def wait_held(self, step: int) -> None:
        """Wait until the fault, which never goes on, holds all ranks in the body of this step, and memory has it."""
        self.wait_step(step)

        def fired() -> list[str]:
            found = self.fired()
            incidents = self.events("incident")
            assert found or not incidents, f"an incident came before the fault: {incidents}\n{self.told}"
            return found

        wait_for(fired, "the fault")
        pages = [Page(page_path(self.memory_of(node), rank)) for node in range(self.nodes) for rank in self.own(node)]
        wait_for(lambda: all(step in page.slot_steps() for page in pages), f"snapshots of step {step}")
        for page in pages:
            page.close()

    def own(self, node: int) -> range:
        """The ranks of the node of this `--node-rank`."""
        return range(node * self.ranks, (node + 1) * self.ranks)

    # --- nodes ------------------------------------------------------------------------------------------------

    def memory_of(self, node: int) -> Path:
        """The memory directory of an agent with this `--node-rank`."""
        return memory_root(os.getuid()) / f"{self.job_id}.node{node}"

    def ranks_of(self, node: int) -> list[int]:
        """Pids of a node's ranks."""
        status = self.status()
        assert status is not None, self.told
        pids = [rank["pid"] for rank in status["ranks"] if rank["rank"] in self.own(node)]
        assert len(pids) == self.ranks, status
        assert all(pids), status
        return pids

    def wait_gone(self, pids: list[int], seconds: float = DEADLINE) -> None:
        """Wait until none of these processes lives."""
        wait_for(lambda: not any(map(alive, pids)), f"the end of {pids}", seconds)

    def assert_same_end(self, undisturbed: FtJob) -> None:
        """Every loss of every rank, and the final state, bit for bit."""
        ranks = range(self.nodes * self.ranks)
        for rank in ranks:
            assert self.losses(rank) == undisturbed.losses(rank), f"rank {rank}"
        assert self.final() == undisturbed.final()
        assert len(self.final()) == len(ranks)

    def resumed(self) -> tuple[str, int, int]:
        """From where the last attempt has begun, its step, and the steps that were lost."""
        last = self.events("resumed")[-1]
        return last["source"], last["step"], last["steps_lost"]

    # --- the end ----------------------------------------------------------------------------------------------

    def memories(self) -> list[str]:
        """Names of the job's directories in memory, after the job's id."""
        root = memory_root(os.getuid())
        found = [path.name for path in root.iterdir() if path.name.startswith(self.job_id)] if root.exists() else []
        return sorted(name.removeprefix(self.job_id) for name in found)

    def assert_clean(self, *memories: str) -> None:
        """No process of the job is left, and nothing in memory but what is named: .node0, .node1."""
        wait_for(lambda: not carriers(self.tag), "the end of all processes of the job", 10.0)
        assert self.memories() == sorted(memories), self.told

    def dispose(self) -> None:
        """Whatever the test has left alive or in memory goes."""
        for pid in carriers(self.tag):  # a stopped one dies of SIGKILL, too
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        super().dispose()
        wait_for(lambda: not carriers(self.tag), "the end of what was killed", 10.0)
        for name in self.memories():
            shutil.rmtree(memory_root(os.getuid()) / (self.job_id + name), ignore_errors=True)


def on_host(name: str) -> Callable[[], None]:
    """What a new process does to have a host name of its own."""

    def unshare() -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUTS):
            raise OSError(ctypes.get_errno(), "unshare")
        socket.sethostname(name)

    return unshare


@contextlib.contextmanager
def taken_port() -> Iterator[int]:
    """A port at which something listens that is no head, and says nothing."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", free_port()))
        other.listen(8)
        yield int(other.getsockname()[1])

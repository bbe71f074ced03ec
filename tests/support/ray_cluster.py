"""A Ray cluster on this machine: one raylet for each node, and a further node for the driver and Ray's head."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.support.agents import NodesJob
from tests.support.leftovers import carriers
from tests.support.machines import why_not
from tests.support.waiting import wait_for

_PROGRAM = Path(__file__).parents[1] / "ray" / "raylets.py"


class RayCluster:
    """The nodes of the cluster, named by the pids of their raylets."""

    def __init__(self, directory: Path, tag: str, own: Sequence[Path] = ()) -> None:
        """Start the cluster without nodes for jobs.

        Args:
            directory: Ray's directory, whose path must be short.
            tag: NAME=VALUE, an environment variable of all processes of the cluster.
            own: folders that each node has for itself.
        """
        name, _, value = tag.partition("=")
        with (directory / "program.log").open("w") as log:
            self._program = subprocess.Popen(
                [sys.executable, str(_PROGRAM), str(directory), *map(str, own)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env={**os.environ, name: value, "RAY_TMPDIR": str(directory / "tmp"), "RAY_USAGE_STATS_ENABLED": "0"},
            )  # fmt: skip
        self._tag = tag
        self.address = self._answer()
        self.raylets: list[int] = []

    def boot(self, count: int = 1) -> None:
        """Add nodes."""
        for _ in range(count):
            self.raylets.append(int(self._ask("add")))

    def path(self, raylet: int, path: Path | str) -> Path:
        """Return the path, from here, of a file of a node."""
        return Path(f"/proc/{raylet}/root{path}")

    def kill(self, raylet: int) -> None:
        """Kill a node's raylet; processes that its workers have started survive."""
        assert int(self._ask(f"kill {raylet}")) == raylet
        self.raylets.remove(raylet)

    def drain(self, raylet: int) -> None:
        """Have Ray drain a node, as for a preemption: the node goes in a minute, or once nothing runs on it."""
        assert int(self._ask(f"drain {raylet}")) == raylet

    def agents(self) -> dict[int, psutil.Process]:
        """Return each raylet that has an agent on its node, with the agent."""
        found = {}
        for pid in carriers(self._tag):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                above = process.parents()
                ours = bool(above) and "ftlaunch.nodes.agent.hosts.remote" in above[0].cmdline()
                for raylet in {ancestor.pid for ancestor in above} & set(self.raylets) if ours else ():
                    found[raylet] = process
        return found

    def agent_of(self, ranks: list[int]) -> tuple[int, psutil.Process]:
        """Return the raylet and the agent of the node with some ranks, given by their pids."""
        children_of = {
            raylet: [child.pid for child in agent.children(recursive=True)] for raylet, agent in self.agents().items()
        }
        (raylet,) = [found for found, children in children_of.items() if set(ranks) <= set(children)]
        return raylet, self.agents()[raylet]

    def actor_of(self, ranks: list[int]) -> psutil.Process:
        """Return the process of the Ray actor on the node with some ranks, given by their pids."""
        raylet, agent = self.agent_of(ranks)
        (actor,) = [ancestor for ancestor in agent.parents() if ancestor.ppid() == raylet]
        return actor

    def others(self) -> list[int]:
        """Return the pids of processes on the cluster that are not Ray's own."""
        found = []
        rays = ("ray::", str(_PROGRAM), _ray_directory())
        for pid in carriers(self._tag):
            with contextlib.suppress(psutil.NoSuchProcess):
                words = " ".join(psutil.Process(pid).cmdline())
                if not any(ray in words for ray in rays):
                    found.append(pid)
        return found

    def close(self) -> None:
        """End all nodes."""
        assert self._program.stdin is not None
        self._program.stdin.close()
        try:
            self._program.wait(30.0)
        except subprocess.TimeoutExpired:
            self._program.kill()
            self._program.wait()
        for pid in carriers(self._tag):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _ask(self, line: str) -> str:
        assert self._program.stdin is not None
        self._program.stdin.write(f"{line}\n")
        self._program.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._program.stdout is not None
        line = self._program.stdout.readline().strip()
        assert line, "the program of the Ray cluster has ended"
        return line


def _ray_directory() -> str:
    """Return the directory of Ray's own programs."""
    found = importlib.util.find_spec("ray")
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).parent)


def lose(agent: psutil.Process) -> list[int]:
    """Kill an agent, its actor and all its children at once, as the loss of their machine does; return the pids."""
    parent = agent.parent()
    assert parent is not None
    lost = [parent, agent, *agent.children(recursive=True)]
    for process in lost:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return [process.pid for process in lost]


def made(job: NodesJob, count: int, own: Sequence[Path] = ()) -> Iterator[RayCluster]:
    """Yield a cluster for a job; skips the test without Ray.

    Args:
        job: the job.
        count: the number of nodes.
        own: folders that each node has for itself.
    """
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed (pip install ray)")
    if own and (why := why_not()):
        pytest.skip(why)
    directory = Path(tempfile.mkdtemp(prefix="ftray", dir="/tmp"))  # sockets in it have names of 107 characters at most
    (directory / "tmp" / "ray").mkdir(parents=True)
    cluster = RayCluster(directory, job.tag, own)
    try:
        cluster.boot(count)
        yield cluster
    finally:
        cluster.close()
        wait_for(lambda: not carriers(job.tag), "the end of the Ray cluster", 10.0)
        shutil.rmtree(directory)

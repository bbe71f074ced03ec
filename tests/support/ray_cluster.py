"""A Ray cluster on this machine: a raylet for each node. The driver and the head of the cluster have a node besides."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.agents import NodesJob
from tests.support.leftovers import carriers
from tests.support.waiting import wait_for

_PROGRAM = Path(__file__).parents[1] / "ray" / "raylets.py"


class RayCluster:
    """The nodes by the pids of their raylets."""

    def __init__(self, directory: Path, tag: str) -> None:
        """directory: Ray's own; its path must be short. tag: NAME=VALUE in the environment of all that is started."""
        name, _, value = tag.partition("=")
        with (directory / "program.log").open("w") as log:
            self._program = subprocess.Popen(
                [sys.executable, str(_PROGRAM), str(directory)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env={**os.environ, name: value, "RAY_TMPDIR": str(directory / "tmp"), "RAY_USAGE_STATS_ENABLED": "0"},
            )  # fmt: skip
        self._tag = tag
        self.address = self._answer()
        self.raylets: list[int] = []

    def boot(self, count: int = 1) -> None:
        """Let so many nodes come."""
        for _ in range(count):
            self.raylets.append(int(self._ask("add")))

    def kill(self, raylet: int) -> None:
        """A node's raylet dies; what its workers have started does not die with it."""
        assert int(self._ask(f"kill {raylet}")) == raylet
        self.raylets.remove(raylet)

    def drain(self, raylet: int) -> None:
        """Ray will take a node away, as for a preemption: in a minute, or once nothing runs on it."""
        assert int(self._ask(f"drain {raylet}")) == raylet

    def agents(self) -> dict[int, psutil.Process]:
        """Raylet -> the agent on its node."""
        found = {}
        for pid in carriers(self._tag):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                above = process.parents()
                ours = bool(above) and "ftlaunch.nodes.agent.hosts.remote" in above[0].cmdline()
                for raylet in {one.pid for one in above} & set(self.raylets) if ours else ():
                    found[raylet] = process
        return found

    def agent_of(self, ranks: list[int]) -> tuple[int, psutil.Process]:
        """The raylet and the agent of the node with these ranks, by their pids."""
        found = {raylet: [one.pid for one in agent.children(recursive=True)] for raylet, agent in self.agents().items()}
        (raylet,) = [one for one, children in found.items() if set(ranks) <= set(children)]
        return raylet, self.agents()[raylet]

    def actor_of(self, ranks: list[int]) -> psutil.Process:
        """The actor's process on the node with these ranks."""
        raylet, agent = self.agent_of(ranks)
        (actor,) = [one for one in agent.parents() if one.ppid() == raylet]
        return actor

    def others(self) -> list[int]:
        """Pids of what was started on the cluster besides Ray itself."""
        found = []
        rays = ("ray::", str(_PROGRAM), _ray_directory())
        for pid in carriers(self._tag):
            with contextlib.suppress(psutil.NoSuchProcess):
                words = " ".join(psutil.Process(pid).cmdline())
                if not any(one in words for one in rays):
                    found.append(pid)
        return found

    def close(self) -> None:
        """All nodes end."""
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
    """Where Ray's own programs are."""
    found = importlib.util.find_spec("ray")
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).parent)


def lose(agent: psutil.Process) -> list[int]:
    """All of an agent's machine dies at once, as far as ftlaunch has to do with it; returns the pids."""
    parent = agent.parent()
    assert parent is not None
    lost = [parent, agent, *agent.children(recursive=True)]
    for process in lost:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return [process.pid for process in lost]


def made(job: NodesJob, count: int) -> Iterator[RayCluster]:
    """A cluster of so many nodes for a job; skips the test where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed (pip install ray)")
    directory = Path(tempfile.mkdtemp(prefix="ftray", dir="/tmp"))  # sockets in it have names of 107 characters at most
    (directory / "tmp" / "ray").mkdir(parents=True)
    cluster = RayCluster(directory, job.tag)
    try:
        cluster.boot(count)
        yield cluster
    finally:
        cluster.close()
        wait_for(lambda: not carriers(job.tag), "the end of the Ray cluster", 10.0)
        shutil.rmtree(directory)

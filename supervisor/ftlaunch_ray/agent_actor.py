"""The actor on a node: it holds the connection to the agent there, which is a process of its own.

It starts what ssh starts on a host of `--hosts`, `ftlaunch.nodes.agent.hosts.remote`: that process starts the agent,
and the end of its stdin is SIGTERM for the agent. So whatever ends this actor stops the agent in good order: its driver
or its raylet is gone, or somebody has killed it.

Ray kills the children of an actor that ends with SIGKILL. Hence the shell between: Ray kills that one, and the process
that it has started lives on until the agent has ended.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

import ray

_BLOCK = 64 << 10
_MOST_WAITING = 16  # blocks that wait for the driver
_BEHIND = '"$@"; exit $?'  # the exit keeps the shell from becoming the program
# What Ray sets for its own workers, and what says how a raylet was started.
_NOT_OURS = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "RAY_RAYLET_PID", "SLURM_")


class Where(NamedTuple):
    """Where an actor is."""

    node: str
    """the id of its node"""
    address: str
    port: int
    """one that was free there"""


class Output(NamedTuple):
    """What an agent has written."""

    stream: int
    block: bytes


class AgentActor:
    """Runs an agent, once."""

    def __init__(self) -> None:
        self._stdin: asyncio.StreamWriter | None = None
        self._early: list[int] = []

    async def where(self) -> Where:
        """Where this is."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        return Where(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), port)

    async def run(self, order: bytes) -> AsyncIterator[Output | int]:
        """Start the agent, and pass on its output; its exit code comes last. order: a line, see `remote.py`."""
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", _BEHIND, "sh", sys.executable, "-P", "-m", "ftlaunch.nodes.agent.hosts.remote",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=_plain(os.environ), start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(order)
        self._stdin = process.stdin
        for number in self._early:
            await self.signal(number)
        await process.stdout.readline()  # REACHED, which is for ssh
        blocks: asyncio.Queue[Output | None] = asyncio.Queue(_MOST_WAITING)
        pumps = [asyncio.create_task(_pump(number, stream, blocks))
                 for number, stream in ((1, process.stdout), (2, process.stderr))]  # fmt: skip
        ended = 0
        while ended < len(pumps):
            output = await blocks.get()
            if output is None:
                ended += 1
            else:
                yield output
        yield await process.wait()

    async def signal(self, number: int) -> None:
        """Pass a signal on to the agent."""
        if self._stdin is None:
            self._early.append(number)
        else:
            self._stdin.write(bytes([number]))


async def _pump(number: int, stream: asyncio.StreamReader, blocks: asyncio.Queue[Output | None]) -> None:
    while block := await stream.read(_BLOCK):
        await blocks.put(Output(number, block))
    await blocks.put(None)


def _plain(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of an agent on this node: those of its raylet."""
    return {name: value for name, value in environ.items() if not name.startswith(_NOT_OURS)}

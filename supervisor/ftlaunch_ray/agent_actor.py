"""The Ray actor on a node: starts the agent as a process of its own, passes signals in and output out.

The class runs in a Ray worker process on the node; `session.Session` calls it from the driver. The actor starts the
program that ssh starts on a host of `--hosts`, `ftlaunch.nodes.agent.hosts.remote`. That program starts the agent, and
sends SIGTERM to the agent when its stdin ends. The agent therefore stops in good order whatever ends the actor: the
driver or the raylet is gone, or somebody killed the actor.

When an actor ends, Ray kills the actor's children with SIGKILL. Hence the shell in between: Ray kills the shell, and
the program that the shell started lives on until the agent has ended.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

import ray

from ftlaunch_contract.schedulers import table as schedulers

_BLOCK = 64 << 10
_MAX_QUEUED_BLOCKS = 16  # output that waits for the driver
_SHELL_SCRIPT = '"$@"; exit $?'  # the exit keeps the shell from replacing itself by the program
# Prefixes of variables that Ray sets for its own workers.
_RAY_PREFIXES = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "RAY_RAYLET_PID")


class Where(NamedTuple):
    """The node that an actor runs on."""

    node: str
    """Ray's id of the node"""
    address: str
    """the node's IP address"""
    port: int
    """a TCP port that was free on the node when the actor looked"""


class Output(NamedTuple):
    """A block of an agent's output."""

    stream: int
    """1 for stdout, 2 for stderr"""
    block: bytes
    """up to 64 KiB, cut anywhere, also within a line"""


class AgentActor:
    """Runs one agent, once. The methods are called by the driver, over Ray, in one event loop."""

    def __init__(self) -> None:
        self._stdin: asyncio.StreamWriter | None = None
        self._early_signals: list[int] = []

    async def where(self) -> Where:
        """Return the node of this actor, with a port that is free there now."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        return Where(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), port)

    async def run(self, order: bytes) -> AsyncIterator[Output | int]:
        """Start the agent and yield its output.

        Args:
            order: one line of JSON that tells `hosts/remote.py` what to start.

        Yields:
            Blocks of output in the order of their arrival, and the exit code of the agent at the end.
        """
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", _SHELL_SCRIPT, "sh", sys.executable, "-P", "-m", "ftlaunch.nodes.agent.hosts.remote",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=_plain(os.environ), start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(order)
        self._stdin = process.stdin
        for number in self._early_signals:
            await self.signal(number)
        await process.stdout.readline()  # REACHED: tells ssh that the host was reached, and is no output of the agent
        blocks: asyncio.Queue[Output | None] = asyncio.Queue(_MAX_QUEUED_BLOCKS)
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
        """Pass a signal on to the agent; a signal that comes before the agent has started waits for the start."""
        if self._stdin is None:
            self._early_signals.append(number)
        else:
            self._stdin.write(bytes([number]))


async def _pump(number: int, stream: asyncio.StreamReader, blocks: asyncio.Queue[Output | None]) -> None:
    while block := await stream.read(_BLOCK):
        await blocks.put(Output(number, block))
    await blocks.put(None)


def _plain(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the raylet's environment without the variables that Ray or a scheduler set for the raylet itself."""
    set_for_raylet = (*_RAY_PREFIXES, *schedulers.prefixes())
    return {name: value for name, value in environ.items() if not name.startswith(set_for_raylet)}

"""Runs on a host under ssh: starts the agent, passes on its output and signals, and ends with its exit code.

Runs as `python -m ftlaunch.nodes.agent.hosts.remote`. The connection is stdin, stdout and stderr:

    1. This process writes the line REACHED to stdout. Earlier output is ssh's or a login shell's.
    2. The launcher sends one line of JSON: {"cwd", "argv", "env", "secrets": [line, ...]}. The secrets go to the
    agent's
       stdin.
    3. After that, each byte on stdin is the number of a signal for the agent.

At the end of stdin the agent gets SIGTERM, because the launcher, its machine or the network is gone. The agent is then
drained, or the whole job stops in good order. Agent output that no reader takes any more is thrown away here and stops
nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from types import FrameType
from typing import Any

from ftlaunch.nodes.agent.hosts.outlet import Outlet
from ftlaunch.system import processes
from ftlaunch.system.own_modules import module
from ftlaunch_contract.files.kernel_files import open_end
from ftlaunch_contract.protocol import EXIT_USAGE

REACHED = b"ftlaunch: this host is reached\n"
_BLOCK = 64 << 10
_FAREWELL_SECONDS = 5.0  # that the last lines may take on their way


class Remote:
    """Serves the connection for the agent of this host."""

    def __init__(self, out: Outlet, err: Outlet) -> None:
        self._out = out
        self._err = err
        self._agent: subprocess.Popen[bytes] | None = None
        self._selector = selectors.DefaultSelector()

    def run(self, order: dict[str, Any]) -> int:
        """Start the agent, and serve the connection until the agent ends. Return the exit code."""
        try:
            agent = self._start(order)
        except OSError as error:
            where = error.filename or sys.executable
            self._err.put(f"ftlaunch: cannot start on this host: {where}: {str(error.strerror).lower()}\n".encode())
            return EXIT_USAGE
        end = open_end(agent.pid)
        assert agent.stdout is not None
        assert agent.stderr is not None
        streams = {agent.stdout.fileno(): self._out, agent.stderr.fileno(): self._err}
        for fd in (sys.stdin.fileno(), end, *streams):
            self._selector.register(fd, selectors.EVENT_READ)
        while agent.poll() is None:
            for key, _ in self._selector.select():
                if key.fd in streams:
                    self._pass_on(key.fd, streams[key.fd])
                elif key.fd == sys.stdin.fileno():
                    self._read_signals()
        for fd, outlet in streams.items():  # without blocking: a head that the agent has started may hold them open
            os.set_blocking(fd, False)
            while self._pass_on(fd, outlet):
                pass
        return agent.returncode if agent.returncode >= 0 else 128 - agent.returncode

    def _start(self, order: dict[str, Any]) -> subprocess.Popen[bytes]:
        os.chdir(order["cwd"])
        agent = subprocess.Popen(
            module("ftlaunch", *order["argv"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **order["env"]},
            start_new_session=True,
            preexec_fn=processes.dies_with(os.getpid()),  # noqa: PLW1509 - in the main thread, which never ends first
        )
        self._agent = agent
        assert agent.stdin is not None
        with contextlib.suppress(BrokenPipeError), agent.stdin:
            agent.stdin.write("".join(f"{line}\n" for line in order["secrets"]).encode())
        return agent

    def _pass_on(self, fd: int, outlet: Outlet) -> bool:
        """Pass on one block of output. Return whether there was one."""
        try:
            block = os.read(fd, _BLOCK)
        except BlockingIOError:
            return False
        if block:
            outlet.put(block)
        elif fd in self._selector.get_map():
            self._selector.unregister(fd)
        return bool(block)

    def _read_signals(self) -> None:
        try:
            numbers = os.read(sys.stdin.fileno(), _BLOCK)
        except ConnectionError:  # stdin may be a socket of sshd's, whose other end has left something unread
            numbers = b""
        for number in numbers:
            self._send_signal(number)
        if not numbers:
            self._selector.unregister(sys.stdin.fileno())
            self._send_signal(signal.SIGTERM)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal to this process: send SIGTERM to the agent."""
        self._send_signal(signal.SIGTERM)

    def _send_signal(self, number: int) -> None:
        if self._agent is not None:
            with contextlib.suppress(ProcessLookupError):
                self._agent.send_signal(number)


def main() -> int:
    """Serve the connection on stdin, stdout and stderr. Return the exit code."""
    out = Outlet(sys.stdout.fileno())
    err = Outlet(sys.stderr.fileno())
    remote = Remote(out, err)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, remote.on_signal)
    out.put(REACHED)
    line = _read_first_line()
    code = remote.run(json.loads(line)) if line.endswith(b"\n") else EXIT_USAGE
    out.close(_FAREWELL_SECONDS)
    err.close(_FAREWELL_SECONDS)
    return code


def _read_first_line() -> bytes:
    """Read the first line of stdin, byte by byte, because the bytes after the line are signals.

    The line lacks its newline if the connection has ended.
    """
    line = bytearray()
    while not line.endswith(b"\n") and (byte := os.read(sys.stdin.fileno(), 1)):
        line += byte
    return bytes(line)


if __name__ == "__main__":
    sys.exit(main())

"""What ssh runs on a host: starts the agent there, passes on its output and its signals, and ends with its exit code.

Runs as `python -m ftlaunch.nodes.agent.hosts.remote`. Its stdin is the connection:

    1. this process writes the line REACHED to its stdout: what came before is ssh's, or a login shell's
    2. it is sent one line of JSON: {"cwd", "argv", "env", "secrets": [line, ...]}; the secrets go to the agent's stdin
    3. then each byte is the number of a signal for the agent

The end of its stdin is SIGTERM for the agent: the command that has started it is gone, or its machine, or the network.
The agent then is drained, or the whole job stops in good order. That the agent's output has no reader any more stops
nothing: it is thrown away here.
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
_FAREWELL = 5.0  # seconds that the last lines may take on their way


class Remote:
    """The agent of this host, and the connection."""

    def __init__(self, out: Outlet, err: Outlet) -> None:
        self._out, self._err = out, err
        self._agent: subprocess.Popen[bytes] | None = None
        self._selector = selectors.DefaultSelector()

    def run(self, order: dict[str, Any]) -> int:
        """Start the agent, and serve it to its end; returns the exit code."""
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
                    self._hear()
        for fd, outlet in streams.items():  # a head that the agent has started may hold them open
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
        """Whether there was something to pass on."""
        try:
            block = os.read(fd, _BLOCK)
        except BlockingIOError:
            return False
        if block:
            outlet.put(block)
        elif fd in self._selector.get_map():
            self._selector.unregister(fd)
        return bool(block)

    def _hear(self) -> None:
        try:
            numbers = os.read(sys.stdin.fileno(), _BLOCK)
        except ConnectionError:  # sshd gives a socket, whose other end may have left something unread
            numbers = b""
        for number in numbers:
            self._signal(number)
        if not numbers:
            self._selector.unregister(sys.stdin.fileno())
            self._signal(signal.SIGTERM)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """A signal to this process is meant for the agent."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        if self._agent is not None:
            with contextlib.suppress(ProcessLookupError):
                self._agent.send_signal(number)


def main() -> int:
    """Serve the connection that is stdin."""
    out, err = Outlet(sys.stdout.fileno()), Outlet(sys.stderr.fileno())
    remote = Remote(out, err)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, remote.on_signal)
    out.put(REACHED)
    line = _first_line()
    code = remote.run(json.loads(line)) if line.endswith(b"\n") else EXIT_USAGE
    out.close(_FAREWELL)
    err.close(_FAREWELL)
    return code


def _first_line() -> bytes:
    """A byte at a time: those after it are signals. Without its end where the connection has ended."""
    line = bytearray()
    while not line.endswith(b"\n") and (byte := os.read(sys.stdin.fileno(), 1)):
        line += byte
    return bytes(line)


if __name__ == "__main__":
    sys.exit(main())

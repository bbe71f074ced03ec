"""One ssh session of the launcher: starts ssh, labels the host's output by line, and reports the end.

Runs in the launcher's event loop.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ftlaunch.common.line_splitter import LineSplitter
from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.nodes.agent.hosts.outlet import Outlet
from ftlaunch.nodes.agent.hosts.remote import REACHED
from ftlaunch.system.helper_process import PIPE, HelperProcesses
from ftlaunch_contract.files.kernel_files import open_end

_BLOCK = 64 << 10
_LONGEST_LINE = 64 << 10  # bytes; a longer line is cut into several
_PIPE_SIZE = 1 << 20  # bytes
_MOST_WORDS = 20  # lines that are kept of a host's output before the host is reached


class _Stream:
    """Splits stdout or stderr of a session into lines."""

    def __init__(self, fd: int, outlet: Outlet) -> None:
        self.fd = fd
        self.outlet = outlet
        self._splitter = LineSplitter(_LONGEST_LINE, long_lines="break")
        os.set_blocking(fd, False)

    def read(self) -> tuple[list[bytes], bool]:
        """Read one block.

        Returns:
            The whole lines that have come, each with its newline; and whether there may be more.
        """
        try:
            block = os.read(self.fd, _BLOCK)
        except BlockingIOError:
            return [], False
        lines = self._splitter.split(block)
        if not block and (rest := self._splitter.flush()):
            lines.append(rest)
        return [line.rstrip(b"\r") + b"\n" for line in lines], bool(block)


class HostSession:
    """A connection to one host, from the start of ssh to its end."""

    def __init__(
        self,
        loop: EventLoop[Any],
        helpers: HelperProcesses,
        argv: Sequence[str],
        host: str,
        outlets: tuple[Outlet, Outlet],
        on_reached: Callable[[], None],
        on_end: Callable[[int], None],
    ) -> None:
        """Start ssh.

        Args:
            loop: the launcher's event loop.
            helpers: starts processes.
            argv: the ssh command.
            host: the host's name, which labels each line of its output.
            outlets: the launcher's stdout and stderr.
            on_reached: called once `remote.py` runs on the host.
            on_end: called with the exit code of ssh.

        Raises:
            OSError: ssh cannot be started.
        """
        self._loop = loop
        self._host = host
        self._on_reached = on_reached
        self._on_end = on_end
        self._process = process = helpers.start(argv, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._stdin = process.stdin.fileno()
        with contextlib.suppress(OSError):  # the user may have no pipe memory left: then the pipe stays at 64 KiB
            fcntl.fcntl(self._stdin, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        self.reached = False
        """whether `remote.py` runs on the host"""
        self.words: deque[str] = deque(maxlen=_MOST_WORDS)
        """the last lines of ssh or a login shell before the host was reached"""
        self._streams = [_Stream(process.stdout.fileno(), outlets[0]), _Stream(process.stderr.fileno(), outlets[1])]
        self._end = open_end(process.pid)
        for stream in self._streams:
            loop.register(stream.fd, partial(self._read, stream))
        loop.register(self._end, self._on_exit)

    def send(self, data: bytes) -> None:
        """Write `data` to the host; do nothing if ssh is gone."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._stdin, data)

    def stop(self, number: int) -> None:
        """Pass a signal on to the agent, or end the connection if the host is not reached yet."""
        if self.reached:
            self.send(bytes([number]))
        else:
            self.give_up()

    def give_up(self) -> None:
        """End the connection."""
        self._process.terminate()

    def _read(self, stream: _Stream) -> None:
        self._read_more(stream)

    def _read_more(self, stream: _Stream) -> bool:
        """Pass on one block of a stream. Return whether there may be more."""
        lines, more = stream.read()
        for line in lines:
            self._pass_on(line, stream.outlet)
        if not more and stream in self._streams and not lines:
            self._streams.remove(stream)
            self._loop.unregister(stream.fd)
        return more

    def _pass_on(self, line: bytes, outlet: Outlet) -> None:
        if self.reached:
            outlet.put(f"[{self._host}] ".encode() + line)
        elif line == REACHED:
            self.reached = True
            self._on_reached()
        else:
            self.words.append(line.decode(errors="replace").strip())

    def _on_exit(self) -> None:
        for stream in list(self._streams):
            while self._read_more(stream):
                pass
            if stream in self._streams:
                self._loop.unregister(stream.fd)
        self._loop.unregister(self._end)
        os.close(self._end)
        code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._on_end(code)

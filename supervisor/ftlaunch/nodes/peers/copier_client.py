"""The agent's end of the copier: starts it, asks it, reads its answers, notices its death."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from ftlaunch.system import processes
from ftlaunch.system.helper_process import PIPE, HelperProcesses
from ftlaunch.system.own_modules import module
from ftlaunch_contract.files import atomic

_BLOCK = 1 << 16
_STOPPED = 2.0  # seconds


class CopierLink:
    """A running copier. Several requests may be under way; what it says arrives on `fd`."""

    def __init__(self, helpers: HelperProcesses) -> None:
        """Start the copier, which is killed with us: call this in the main thread. Raises OSError."""
        self._process = helpers.start(module("ftlaunch.nodes.peers.copier"), stdin=PIPE, stdout=PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = self._process.stdin
        self._stdout = self._process.stdout
        os.set_blocking(self._stdout.fileno(), False)
        self.fd = self._stdout.fileno()
        """readable when it has said something, or is gone"""
        self.pid = self._process.pid
        self._buffer = b""
        self._stopped_since: float | None = None

    @property
    def closed(self) -> bool:
        """Whether `close` has been called: nothing may be asked any more."""
        return self._stdin.closed

    def send(self, request: dict[str, Any]) -> None:
        """Send a request. Requests are short: the pipe takes them at once."""
        with contextlib.suppress(BrokenPipeError):  # the copier is gone: the loop hears that on `fd`
            atomic.write_all(self._stdin.fileno(), json.dumps(request).encode() + b"\n")

    def answers(self) -> list[dict[str, Any]] | None:
        """What it has said; None when it is gone."""
        try:
            block = os.read(self.fd, _BLOCK)
        except BlockingIOError:
            return []
        if not block:
            return None
        *lines, self._buffer = (self._buffer + block).split(b"\n")
        return [json.loads(line) for line in lines]

    def look(self, now: float) -> None:
        """End a copier that was stopped (SIGSTOP), at monotonic `now`: others wait for it."""
        if self.closed or processes.state_of(self.pid) != "T":
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = now
        elif now - self._stopped_since > _STOPPED:
            self._process.kill()

    def close(self, timeout: float) -> int | None:
        """Let the copier end; SIGKILL it after `timeout` seconds. Returns its exit status.

        None: it is in a system call that does not come back, and ends with that.
        """
        if not self.closed:
            self._stdin.close()
        status = self._process.end(timeout)
        self._stdout.close()
        return status

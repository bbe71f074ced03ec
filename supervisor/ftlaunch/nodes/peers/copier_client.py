"""The agent's end of the copier: starts the process, sends requests, reads answers, and notices its death.

Runs in the agent's event loop.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from ftlaunch.system import processes
from ftlaunch.system.answer_line import AnswerReader
from ftlaunch.system.helper_process import PIPE, HelperProcesses
from ftlaunch.system.own_modules import module
from ftlaunch_contract.files import atomic

PROGRAM = "ftlaunch.nodes.peers.copier"
_STOPPED_SECONDS = 2.0  # after which a stopped copier is killed


class CopierLink:
    """A running copier. Several requests may be under way; answers arrive on `fd`."""

    def __init__(self, helpers: HelperProcesses, program: str = PROGRAM) -> None:
        """Start the copier, which dies with this process. Call this in the main thread.

        Args:
            helpers: starts the process.
            program: the module to run: the copier, or another that takes several requests at once as the copier does.

        Raises:
            OSError: the process cannot be started.
        """
        self._process = helpers.start(module(program), stdin=PIPE, stdout=PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = self._process.stdin
        self._stdout = self._process.stdout
        self.fd = self._stdout.fileno()
        """readable when the copier has answered or is gone"""
        self.pid = self._process.pid
        self._answers = AnswerReader(self.fd)
        self._stopped_since: float | None = None

    @property
    def closed(self) -> bool:
        """Whether `close` has been called, after which no request may follow."""
        return self._stdin.closed

    def send(self, request: dict[str, Any]) -> None:
        """Send a request. Requests are short enough for the pipe to take them at once."""
        with contextlib.suppress(BrokenPipeError):  # the copier is gone, which `fd` shows to the loop
            atomic.write_all(self._stdin.fileno(), json.dumps(request).encode() + b"\n")

    def answers(self) -> list[dict[str, Any]] | None:
        """Return the answers that have arrived, or None if the copier is gone."""
        return self._answers.read()

    def poll(self, now: float) -> None:
        """Kill a copier that has been stopped (SIGSTOP) for long. now: monotonic seconds."""
        if self.closed or processes.state_of(self.pid) != "T":
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = now
        elif now - self._stopped_since > _STOPPED_SECONDS:
            self._process.kill()

    def close(self, timeout_seconds: float) -> int | None:
        """Let the copier end, and kill it after `timeout_seconds`.

        Returns:
            The exit status, or None if the copier is stuck in a system call and ends only with that.
        """
        if not self.closed:
            self._stdin.close()
        status = self._process.end(timeout_seconds)
        self._stdout.close()
        return status

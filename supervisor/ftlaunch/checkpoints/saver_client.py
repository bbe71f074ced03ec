"""The supervisor's end of the saver: starts the saver process, sends requests, reads answers, notices its death.

Runs in the supervisor's main thread and never waits, except in `close`. `Saver` is the interface that the scheduler
uses; `SaverLink` implements it for one node, `nodes/` for several.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any, Protocol

from ftlaunch.system import process_activity, processes
from ftlaunch.system.answer_line import AnswerReader
from ftlaunch.system.helper_process import PIPE, HelperProcesses
from ftlaunch.system.own_modules import module
from ftlaunch_contract.files import atomic

PROGRAM = "ftlaunch.checkpoints.saver"
"""the module that a saver runs"""
_STOPPED_SECONDS = 2.0
"""how long a saver may be stopped over a request; less than a grace, so that a job that must stop is still saved"""


class Saver(Protocol):
    """Commits steps and verifies checkpoints, one request at a time. Stands for one process, or for one on each node.

    A saver is used once: after `answers` has returned None, a new one takes its place. `checkpoints/saver.py` lists the
    requests and answers.
    """

    fd: int
    """readable when an answer has arrived, or the saver is gone"""

    @property
    def stored(self) -> int:
        """The newest step on storage that the checkpoint directory need not have; -1: there is none."""

    @property
    def pid(self) -> int:
        """The pid of the process; of several nodes, that of one of them."""

    @property
    def pending(self) -> dict[str, Any] | None:
        """The request under way; None: there is none."""

    @property
    def closed(self) -> bool:
        """Whether `close` was called, after which nothing may be asked."""

    def ask(self, request: dict[str, Any]) -> None:
        """Send a request. `pending` must be None, and is the request until the answer has arrived."""

    def hurry(self) -> None:
        """Lift the bandwidth limit of the save under way."""

    def answers(self) -> list[dict[str, Any]] | None:
        """Return the answers that have arrived; None if the saver is gone."""

    def work(self) -> object:
        """Return a value that changes whenever the saver has done something."""

    def kill_if_stopped(self, now: float) -> None:
        """Kill a saver that cannot answer. The event loop then learns of its end from `fd`. now: monotonic seconds."""

    def close(self, timeout: float) -> int | None:
        """Let the saver finish and leave; SIGKILL the saver after `timeout` seconds.

        Returns:
            The exit status; None: the saver is in a system call that does not return.
        """


class SaverLink:
    """A running saver process. At most one request is under way; its answer arrives on `fd`."""

    stored = -1
    """the saver puts all checkpoints into the directory"""

    def __init__(self, helpers: HelperProcesses, marker: str, locks: Sequence[int], program: str = PROGRAM) -> None:
        """Start the saver.

        Args:
            helpers: starts the process.
            marker: marks the environment of the processes that the saver kills after the supervisor has gone.
            locks: descriptors of the locks of the memory directory and the checkpoint directory. The saver holds them,
                too: if the supervisor is killed, its successor waits until a save under way is finished.
            program: the module to run: the saver, or another that takes requests as the saver does.

        Raises:
            OSError: the process cannot be started.
        """
        self._process = helpers.start(
            module(program, marker),
            stdin=PIPE,
            stdout=PIPE,
            pass_fds=tuple(locks),
            outlives_us=True,  # to finish the save under way
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = self._process.stdin
        self._stdout = self._process.stdout
        self.fd = self._stdout.fileno()
        self.pid = self._process.pid
        self.pending: dict[str, Any] | None = None
        self._answers = AnswerReader(self.fd)
        self._stopped_since: float | None = None

    @property
    def closed(self) -> bool:
        """Whether `close` was called, after which nothing may be asked."""
        return self._stdin.closed

    def ask(self, request: dict[str, Any]) -> None:
        """Send a request, which is `pending` until its answer has arrived. A pipe takes a request at once."""
        assert self.pending is None
        self.pending = request
        self._send(request)

    def hurry(self) -> None:
        """Lift the bandwidth limit of the save under way."""
        self._send({"do": "hurry"})

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # the saver is gone, which the event loop learns from `fd`
            atomic.write_all(self._stdin.fileno(), json.dumps(message).encode() + b"\n")

    def answers(self) -> list[dict[str, Any]] | None:
        """Return the answers that have arrived; None if the saver is gone."""
        answers = self._answers.read()
        if answers:
            self.pending = None
        return answers

    def work(self) -> tuple[float, int]:
        """Return what the saver has done up to now: its processor seconds, and the bytes read and written."""
        return process_activity.work_of(self.pid)

    def kill_if_stopped(self, now: float) -> None:
        """Kill a saver that is stopped (SIGSTOP) over a request, because perhaps nobody will continue this saver."""
        if self.pending is None or self.closed or processes.state_of(self.pid) != "T":
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = now
        elif now - self._stopped_since > _STOPPED_SECONDS:
            self._process.kill()

    def close(self, timeout: float) -> int | None:
        """Let the saver finish and leave; SIGKILL the saver after `timeout` seconds.

        Returns:
            The exit status; None: the saver is in a system call that does not return, and will end after this call.
        """
        if not self.closed:
            self._send({"do": "leave"})
            self._stdin.close()
        status = self._process.end(timeout)
        self._stdout.close()
        return status

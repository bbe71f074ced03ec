"""The supervisor's end of the saver: starts it, asks it, reads its answers, notices its death."""

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
_STOPPED = 2.0  # seconds: less than a grace, so that a job which was told to stop is still saved


class Saver(Protocol):
    """Commits steps and verifies checkpoints, one request at a time: a process, or one on each node."""

    fd: int
    """readable when it has answered, or is gone"""

    @property
    def pid(self) -> int:
        """The pid of the process; of several nodes, that of one of them."""

    @property
    def pending(self) -> dict[str, Any] | None:
        """The request under way."""

    @property
    def closed(self) -> bool:
        """Whether `close` has been called: nothing may be asked any more."""

    def ask(self, request: dict[str, Any]) -> None:
        """Send a request: `pending` until its answer is there."""

    def hurry(self) -> None:
        """Let the save under way go on as fast as it can."""

    def answers(self) -> list[dict[str, Any]] | None:
        """Answers that have arrived; None when it is gone."""

    def work(self) -> object:
        """Changes whenever it has done something."""

    def look(self, now: float) -> None:
        """End a saver that cannot answer, at monotonic `now`: the loop hears that on `fd`."""

    def close(self, timeout: float) -> int | None:
        """Let it finish and leave; SIGKILL it after `timeout` seconds."""


class SaverLink:
    """A running saver. At most one request is under way; its answer arrives on `fd`."""

    def __init__(self, helpers: HelperProcesses, marker: str, locks: Sequence[int], program: str = PROGRAM) -> None:
        """Start the saver. Raises OSError.

        locks: descriptors of the memory and the checkpoint directory's locks, held by the saver too: should
        the supervisor be killed, its successor waits until a save under way is finished. program: the module to run:
        the saver, or another that takes requests as the saver does.
        """
        self._process = helpers.start(
            module(program, marker),
            stdin=PIPE,
            stdout=PIPE,
            pass_fds=tuple(locks),
            outlives_us=True,  # it finishes the save under way
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
        """Whether `close` has been called: nothing may be asked any more."""
        return self._stdin.closed

    def ask(self, request: dict[str, Any]) -> None:
        """Send a request: `pending` until its answer is there. Requests are short: the pipe takes them at once."""
        assert self.pending is None
        self.pending = request
        self._send(request)

    def hurry(self) -> None:
        """Let the save under way go on as fast as it can."""
        self._send({"do": "hurry"})

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # the saver is gone: the loop hears that on `fd`
            atomic.write_all(self._stdin.fileno(), json.dumps(message).encode() + b"\n")

    def answers(self) -> list[dict[str, Any]] | None:
        """Answers that have arrived; None when the saver is gone."""
        answers = self._answers.read()
        if answers:
            self.pending = None
        return answers

    def work(self) -> tuple[float, int]:
        """What the saver has done up to now: seconds of processor time, and bytes read and written."""
        return process_activity.work_of(self.pid)

    def look(self, now: float) -> None:
        """End a saver that was stopped (SIGSTOP) over a request: nobody may continue it, and another one can save."""
        if self.pending is None or self.closed or processes.state_of(self.pid) != "T":
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = now
        elif now - self._stopped_since > _STOPPED:
            self._process.kill()

    def close(self, timeout: float) -> int | None:
        """Let the saver finish and leave; SIGKILL it after `timeout` seconds.

        Returns its exit status; None: it is in a system call that does not come back, and ends with that.
        """
        if not self.closed:
            self._send({"do": "leave"})
            self._stdin.close()
        status = self._process.end(timeout)
        self._stdout.close()
        return status

"""The supervisor's end of the saver: start it, ask, read its answers, notice its death."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from ftlaunch_hooks import atomic


class SaverLink:
    """A running saver. At most one request is under way; its answer arrives on `fd`."""

    def __init__(self, marker: str, locks: Sequence[int]) -> None:
        """Start the saver. Raises OSError.

        locks: descriptors of the memory and the checkpoint directory's locks, held by the saver too: should
        the supervisor be killed, its successor waits until a save under way is finished.
        """
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "ftlaunch.saver", marker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=tuple(locks),
            start_new_session=True,  # a signal to the supervisor's group is not meant for it
        )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._stdin = self._popen.stdin
        self._stdout = self._popen.stdout
        os.set_blocking(self._stdout.fileno(), False)
        self.fd = self._stdout.fileno()
        self.pid = self._popen.pid
        self.pending: dict[str, Any] | None = None
        self._buffer = b""

    def ask(self, request: dict[str, Any]) -> None:
        """Send a request. Requests are short: the pipe takes them at once. Raises OSError when it is gone."""
        assert self.pending is None
        self.pending = request
        atomic.write_all(self._stdin.fileno(), json.dumps(request).encode() + b"\n")

    def hurry(self) -> None:
        """Let the save under way go on as fast as it can. Raises OSError when the saver is gone."""
        atomic.write_all(self._stdin.fileno(), b'{"do": "hurry"}\n')

    def answers(self) -> list[dict[str, Any]] | None:
        """Answers that have arrived; None when the saver is gone."""
        try:
            block = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return []
        if not block:
            return None
        *lines, self._buffer = (self._buffer + block).split(b"\n")
        if lines:
            self.pending = None
        return [json.loads(line) for line in lines]

    def close(self, timeout: float) -> int | None:
        """Let it finish and leave; SIGKILL after `timeout` seconds. Returns its exit status."""
        try:
            atomic.write_all(self._stdin.fileno(), b'{"do": "leave"}\n')
            self._stdin.close()
        except OSError:
            pass  # it is gone already
        try:
            status = self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            status = self._popen.wait()
        self._stdout.close()
        return status

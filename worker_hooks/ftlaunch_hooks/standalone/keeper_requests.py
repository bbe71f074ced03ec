"""Runs the process that reaches a checkpoint store, for a rank of a job without a supervisor, and asks it.

That process is the supervisor's own keeper (ftlaunch/checkpoints/stores/keeper.py lists the requests). When the rank is
gone, it ends after the request under way; until then it holds the locks that it was given.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ftlaunch_contract.files import atomic

_KEEPER = "ftlaunch.checkpoints.stores.keeper"
_MOST_DEATHS = 3  # of keepers over one request
_LEAVE_SECONDS = 5.0  # in which the keeper is to say in the store that it leaves
_DIED = "the process that reaches the store has died"
Answer = dict[str, Any]


class _Link:
    """A running keeper, and a thread that reads its answers. One request is under way at a time."""

    def __init__(self, locks: Sequence[int], overtaken: Callable[[str], None]) -> None:
        """Start a keeper. Raises OSError.

        Args:
            locks: descriptors of locks that the keeper holds, too.
            overtaken: called with a sentence, in the thread, if another process has taken the store over.
        """
        self._overtaken = overtaken
        self._answers: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", _KEEPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # a forked child closes its end, and must not flush what this process has not sent yet
            cwd="/",  # `-m` looks there first, and a user may have a json.py where the script was started
            pass_fds=tuple(locks),
            start_new_session=True,  # a signal to the ranks is not meant for it
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = self._process.stdin
        self._writing = threading.Lock()
        # A forked child that kept the pipe open would keep the keeper from seeing that rank 0 is gone.
        os.register_at_fork(after_in_child=self._stdin.close)
        self._stdout = self._process.stdout
        threading.Thread(target=self._read, name="ftlaunch-store", daemon=True).start()

    def _read(self) -> None:
        """Run in the thread: read answers until the keeper is gone, which may cut its last one short."""
        with open(self._stdout.fileno(), "rb", closefd=False) as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                answer = json.loads(line)
                if answer["did"] == "heartbeat":
                    self._overtaken(answer["error"])
                else:
                    self._answers.put(answer)
        self._answers.put(None)

    def send(self, message: Answer) -> None:
        """Send a message. A keeper that is gone is found by the thread that reads."""
        with self._writing, suppress(OSError):
            if not self._stdin.closed:
                atomic.write_all(self._stdin.fileno(), json.dumps(message).encode() + b"\n")

    def answer(self) -> Answer | None:
        """Wait for the next answer; None if the keeper is gone."""
        answer = self._answers.get()
        if answer is None:
            self._answers.put(None)  # for whoever asks once more
        return answer

    def leave(self) -> None:
        """Let the keeper say in the store that it leaves, and end it."""
        self.send({"do": "leave"})
        with self._writing, suppress(OSError):
            self._stdin.close()
        try:
            self._process.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class KeeperRequests:
    """The requests to one keeper, and to those that follow it where it dies. One request is under way at a time."""

    def __init__(
        self, locks: Sequence[int], overtaken: Callable[[str], None], greeting: Callable[[], Answer | None]
    ) -> None:
        """Start nothing yet.

        Args:
            locks: descriptors of locks that the keeper holds, too.
            overtaken: called with a sentence, in a thread, if another process has taken the store over.
            greeting: returns what each keeper is asked first; None: nothing.
        """
        self._locks = locks
        self._overtaken = overtaken
        self._greeting = greeting
        self._link: _Link | None = None
        self._under_way: Answer = {}

    def ask(self, request: Answer) -> Answer:
        """Return the answer to a request; if keepers die over it again and again, one with an `error`."""
        self._under_way = request
        for _ in range(_MOST_DEATHS):
            try:
                self._ensure_link()
            except OSError as error:
                return {"did": request["do"], "error": f"no process can be started: {error.strerror}"}
            assert self._link is not None
            self._link.send(request)
            if (answer := self._link.answer()) is not None:
                return answer
            self.leave()
        return {"did": request["do"], "error": _DIED}

    def next_answer(self, request: Answer) -> Answer:
        """Return the next answer to a request that has had one."""
        assert self._link is not None
        if (answer := self._link.answer()) is not None:
            return answer
        self.leave()
        return {"did": request["do"], "error": _DIED}

    def _ensure_link(self) -> None:
        """Start a keeper if there is none. Raises OSError."""
        if self._link is not None:
            return
        self._link = _Link(self._locks, self._overtaken)
        if (greeting := self._greeting()) is not None:
            self._link.send(greeting)
            self._link.answer()  # what it could not do, it tries again with the next request

    def hurry(self) -> None:
        """Let the upload under way go on as fast as it can, also where another keeper has to repeat it."""
        if "bandwidth" in self._under_way:
            self._under_way["bandwidth"] = None
        if self._link is not None:
            self._link.send({"do": "hurry"})

    def leave(self) -> None:
        """Let the keeper say in the store that it leaves, and end it. The next request starts another one."""
        if self._link is not None:
            self._link.leave()
            self._link = None

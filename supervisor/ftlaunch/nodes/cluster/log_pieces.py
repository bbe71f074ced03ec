"""Answers what `ftctl logs` of another node asks about the logs in this machine's log folder, in a thread of its own.

A request is a JSON object. `what` is one of these; `attempt` is in all of them:

    list                    -> `logs`: rank -> [bytes, time of the last write]
    beginnings              -> `notes`: [time, {rank: bytes}, what began], of all runs, the oldest first
    since, `when`           -> `begins`: rank -> offset in bytes of what was printed since `when`
    read, `rank`, `offset`  -> `begin`, `data`: the next piece, in base64, or empty; `size`: bytes of the log

Times are seconds of the epoch. Each answer has `ok`, and `wall`, this machine's time. `busy`: ask again later.
A piece has PIECE_BYTES at most. A file system that is silent keeps the thread waiting, and never the event loop.
"""

from __future__ import annotations

import base64
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ftlaunch.history.rank_logs import LocalFolder, read_piece
from ftlaunch.system.loop import Loop
from ftlaunch_contract.files.regular_file import file_size

PIECE_BYTES = 64 << 10
"""most bytes of a log in one answer"""
MOST_QUEUED = 256 << 10
"""bytes that wait on a connection above which no piece is added: beats must not wait behind pieces of logs"""
BUSY: Mapping[str, Any] = {"ok": True, "busy": True}
"""the answer of who has no time now"""
_MOST_WAITING = 16  # requests
_MOST_NOTES = 10_000  # of where ranks began
Request = Mapping[str, Any]
Reply = Callable[[dict[str, Any]], None]
"""takes the answer to a request, now or later"""


class LogPieces:
    """Serves one log folder. Its methods are called in the event loop."""

    def __init__(self, loop: Loop, log_dir: Path) -> None:
        """Start no thread before the first request.

        Args:
            loop: the event loop.
            log_dir: the log folder.
        """
        self._loop = loop
        self._log_dir = log_dir
        self._changed = threading.Condition()
        self._requests: deque[tuple[Request, Reply]] = deque()  # guarded by _changed
        self._answers: deque[tuple[dict[str, Any], Reply]] = deque()
        self._is_closing = False  # guarded by _changed
        self._answered: int | None = None  # an eventfd

    def serve(self, request: Request, reply: Reply) -> None:
        """Have a request answered by a later call of `reply`, or at once where there is no time or no thread.

        Args:
            request: the request, not checked.
            reply: takes the answer.
        """
        if self._answered is None:
            try:
                self._start()
            except (OSError, RuntimeError) as error:
                reply({"ok": False, "error": f"no thread can be started that reads logs: {error}"})
                return
        with self._changed:
            if len(self._requests) >= _MOST_WAITING:
                reply(dict(BUSY))
                return
            self._requests.append((request, reply))
            self._changed.notify_all()

    def _start(self) -> None:
        """Start the thread. Raises OSError, RuntimeError."""
        answered = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._loop.register(answered, self._deliver)
            threading.Thread(target=self._run, args=(answered,), name="ftlaunch-log-pieces", daemon=True).start()
        except (OSError, RuntimeError):
            self._loop.unregister(answered)
            os.close(answered)
            raise
        self._answered = answered

    def _deliver(self) -> None:
        assert self._answered is not None
        os.eventfd_read(self._answered)
        while self._answers:
            answer, reply = self._answers.popleft()
            reply(answer)

    def close(self) -> None:
        """Let the thread end. Never waits; requests that wait are not answered."""
        with self._changed:
            self._is_closing = True
            self._requests.clear()
            self._changed.notify_all()

    # --- the thread -------------------------------------------------------------------------------------------

    def _run(self, answered: int) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._requests or self._is_closing)
                if self._is_closing:
                    return
                request, reply = self._requests.popleft()
            self._answers.append((_answer(self._log_dir, request), reply))
            with contextlib.suppress(OSError):  # the process ends
                os.eventfd_write(answered, 1)


def _answer(log_dir: Path, request: Request) -> dict[str, Any]:
    """Return the answer to a request, which may be nonsense."""
    try:
        folder = LocalFolder(log_dir, _whole(request, "attempt"))
        found = _find(folder, request)
    except OSError as error:
        return {"ok": False, "error": f"{error.filename or log_dir}: {error.strerror}"}
    except (KeyError, TypeError, ValueError) as error:
        return {"ok": False, "error": f"a request for logs that cannot be understood: {error!r}"}
    return {"ok": True, "wall": time.time(), **found}


def _whole(request: Request, name: str) -> int:
    """Return a whole number of a request. Raises KeyError, ValueError."""
    value = request[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise ValueError(f"{name} is {value!r}")
    return value


def _find(folder: LocalFolder, request: Request) -> dict[str, Any]:
    """Return what a request asks for. Raises OSError, KeyError, TypeError, ValueError."""
    what = request["what"]
    if what == "list":
        return {"logs": {rank: [file_size(folder.path(rank)), at] for rank, at in folder.logs().items()}}
    if what == "beginnings":
        return {"notes": [[note.at, note.lengths, note.begins] for note in folder.beginnings()[-_MOST_NOTES:]]}
    if what == "since":
        return {"begins": folder.begins_since(float(request["when"]))}
    if what != "read":
        raise ValueError(f"what is {what!r}")
    path = folder.path(_whole(request, "rank"))
    offset = _whole(request, "offset")
    begin, content = read_piece(path, offset, PIECE_BYTES) or (offset, b"")
    return {"begin": begin, "data": base64.b64encode(content).decode(), "size": file_size(path)}

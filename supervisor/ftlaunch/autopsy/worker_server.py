"""Asks a rank's worker server (torch's: HTTP on a unix socket), each question within a time of its own."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any

_MOST = 64 << 20  # bytes of an answer


class NoAnswer(Exception):
    """Why a question has no answer; `connected`: the server took the question."""

    def __init__(self, reason: str, connected: bool) -> None:
        super().__init__(reason)
        self.connected = connected


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask(path: Path, question: str, timeout: float) -> bytes:
    """The answer of the handler `question`. Raises NoAnswer."""
    connection = _Connection(path, timeout)
    try:
        try:
            connection.connect()
        except OSError as error:
            raise NoAnswer(f"no witness: {error.strerror or error}", False) from error
        try:
            connection.request("POST", f"/handler/{question}", body=b"")
            response = connection.getresponse()
            body = response.read(_MOST)
        except TimeoutError as error:
            raise NoAnswer(f"{question} not answered within {timeout:.1f} s", True) from error
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(f"{question}: {type(error).__name__}: {error}", True) from error
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        raise NoAnswer(f"{question}: status {response.status}", True)
    return body


def flight_recorder(path: Path, timeout: float) -> dict[str, Any]:
    """What the flight recorder holds. Raises NoAnswer."""
    body = ask(path, "fr_trace_json", timeout)
    try:
        dump = json.loads(body)
    except ValueError as error:
        raise NoAnswer(f"fr_trace_json: {error}", True) from error
    if not isinstance(dump, dict):
        raise NoAnswer("fr_trace_json: not an object", True)
    return dump


def lock_held(path: Path, timeout: float) -> bool:
    """Whether some thread keeps the interpreter's lock.

    Then the worker server answers `ping`, but not `dump_traceback`, which needs that lock. Raises NoAnswer.
    """
    ask(path, "ping", timeout)
    try:
        ask(path, "dump_traceback", timeout)
    except NoAnswer as silence:
        if isinstance(silence.__cause__, TimeoutError):
            return True
        raise
    return False

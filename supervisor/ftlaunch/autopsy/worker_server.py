"""Asks a rank's worker server, which is torch's: HTTP on a unix socket. Each question has a timeout of its own.

The autopsy's collector calls these functions, in its own process.
"""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any

_LARGEST_ANSWER = 64 << 20  # bytes


class NoAnswer(Exception):
    """A question has no answer; the message says why."""

    def __init__(self, reason: str, connected: bool) -> None:
        """Make an error.

        Args:
            reason: why there is no answer, for people.
            connected: whether the server accepted the connection.
        """
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
    """Return the answer of one of the server's handlers.

    Args:
        path: path of the unix socket.
        question: name of the handler.
        timeout: seconds for each operation on the socket.

    Raises:
        NoAnswer: there is no server, no answer in time, or an error instead of an answer.
    """
    connection = _Connection(path, timeout)
    try:
        try:
            connection.connect()
        except OSError as error:
            raise NoAnswer(f"no witness: {error.strerror or error}", False) from error
        try:
            connection.request("POST", f"/handler/{question}", body=b"")
            response = connection.getresponse()
            body = response.read(_LARGEST_ANSWER)
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
    """Return the dump of the rank's flight recorder, as parsed from JSON. Raises NoAnswer."""
    body = ask(path, "fr_trace_json", timeout)
    try:
        dump = json.loads(body)
    except ValueError as error:
        raise NoAnswer(f"fr_trace_json: {error}", True) from error
    if not isinstance(dump, dict):
        raise NoAnswer("fr_trace_json: not an object", True)
    return dump


def lock_held(path: Path, timeout: float) -> bool:
    """Return whether some thread keeps the interpreter's lock.

    In that case the worker server answers `ping`, but not `dump_traceback`, which needs the lock.

    Raises:
        NoAnswer: the server does not answer `ping`, or `dump_traceback` fails for another reason.
    """
    ask(path, "ping", timeout)
    try:
        ask(path, "dump_traceback", timeout)
    except NoAnswer as silence:
        if isinstance(silence.__cause__, TimeoutError):
            return True
        raise
    return False

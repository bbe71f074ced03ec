"""The control socket (unix, mode 0600): `ftctl` asks on it, and a rank passes on a SIGTERM of its own.

One JSON object a line in, one out. Never blocks the loop: what a client does not send or take is dropped.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path
from typing import Any

SOCKET = "control.sock"
_MOST = 4096


class Control:
    """The listening end."""

    def __init__(self, directory: Path) -> None:
        """Listen in `directory`, which must be private. Raises OSError."""
        self.path = directory / SOCKET
        self.path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        mask = os.umask(0o177)
        try:
            self._socket.bind(str(self.path))
        finally:
            os.umask(mask)
        self._socket.listen(16)
        self.fd = self._socket.fileno()

    def accept(self) -> Client | None:
        """A client that has connected, or None."""
        try:
            connection, _ = self._socket.accept()
        except BlockingIOError:
            return None
        connection.setblocking(False)
        return Client(connection)

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._socket.close()
        self.path.unlink(missing_ok=True)


class Client:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.fd = connection.fileno()
        self._buffer = b""

    def request(self) -> dict[str, Any] | None:
        """The request once its line is whole; None while it is not.

        Raises ConnectionError when the client is gone, ValueError when it talks nonsense.
        """
        try:
            block = self._connection.recv(_MOST)
        except BlockingIOError:
            return None
        if not block:
            raise ConnectionError("closed")
        self._buffer += block
        if b"\n" not in self._buffer:
            if len(self._buffer) >= _MOST:
                raise ValueError("request too long")
            return None
        try:
            request = json.loads(self._buffer.partition(b"\n")[0])
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(request, dict):
            raise ValueError("not an object")
        return request

    def answer(self, reply: dict[str, Any]) -> None:
        """Send the reply, as far as the client takes it, and hang up."""
        with contextlib.suppress(OSError):
            self._connection.setblocking(False)
            self._connection.send(json.dumps(reply).encode() + b"\n")
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


def ask(path: Path, request: dict[str, Any], timeout: float = 5.0) -> dict[str, Any]:
    """A client's call: send `request`, return the reply. Raises OSError (nobody there) or ValueError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as file:
            reply = json.loads(file.readline())
    if not isinstance(reply, dict):
        raise ValueError("not an object")
    return reply

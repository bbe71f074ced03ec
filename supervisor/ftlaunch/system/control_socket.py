"""The control socket (unix, mode 0600): `ftctl` asks on it, and a rank passes on a SIGTERM of its own.

One JSON object a line in, one out. Never blocks the loop. A client has a few seconds to ask and to take its answer, and
there are only so many clients at once: one that connects and waits, or does not read, is hung up on.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ftlaunch.system.loop import Clock, Loop

SOCKET = "control.sock"
_MOST = 4096
"""bytes of a request"""
MOST_CLIENTS = 64
"""connections at once"""
PATIENCE_SECONDS = 10.0
"""for a request to come, and for an answer to be taken"""
_PAUSE_SECONDS = 1.0
"""until connections are accepted again, where there is no descriptor for another one"""


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

    def accept(self) -> socket.socket | None:
        """Return the connection of a client, which does not block; None where there is none. Raises OSError."""
        try:
            connection, _ = self._socket.accept()
        except BlockingIOError:
            return None
        connection.setblocking(False)
        return connection

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._socket.close()
        self.path.unlink(missing_ok=True)


class Client:
    """One connection, served in the event loop: it is asked on once, and answered once."""

    def __init__(self, connection: socket.socket, loop: Loop, clock: Clock) -> None:
        """connection: must not block."""
        self._connection, self._loop, self._clock = connection, loop, clock
        self._fd = connection.fileno()
        self._received = b""
        self._unsent = memoryview(b"")
        self._is_registered = False
        self.on_close: Callable[[], None] = lambda: None
        """called once the connection is closed"""

    def await_request(self, on_request: Callable[[dict[str, Any]], None]) -> None:
        """Call `on_request` with the client's request; hang up where none comes in time, or nonsense does."""
        self._register(lambda: self._hear(on_request))

    def _hear(self, on_request: Callable[[dict[str, Any]], None]) -> None:
        try:
            request = self.request()
        except (OSError, ValueError):
            self.close()
            return
        if request is not None:
            self._unregister()
            on_request(request)

    def request(self) -> dict[str, Any] | None:
        """Return the request once its line is whole; None while it is not.

        Raises ConnectionError when the client is gone, ValueError when it talks nonsense.
        """
        try:
            block = self._connection.recv(_MOST)
        except BlockingIOError:
            return None
        if not block:
            raise ConnectionError("closed")
        self._received += block
        if b"\n" not in self._received:
            if len(self._received) >= _MOST:
                raise ValueError("request too long")
            return None
        try:
            request = json.loads(self._received.partition(b"\n")[0])
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(request, dict):
            raise ValueError("not an object")
        return request

    def answer(self, reply: dict[str, Any]) -> None:
        """Send the reply, and hang up when all is sent: what it does not take at once waits in the loop."""
        self._unsent = memoryview(json.dumps(reply).encode() + b"\n")
        self._send()

    def _send(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._connection.send(self._unsent) :]
        except BlockingIOError:
            if not self._is_registered:
                self._register(self._drop_input)
                self._loop.watch_writes(self._fd, self._send)
            return
        except OSError:  # the client is gone
            pass
        self.close()

    def _drop_input(self) -> None:
        """See whether the client has hung up before it had its answer; what it sends now is not read."""
        try:
            is_gone = not self._connection.recv(_MOST)
        except BlockingIOError:
            return
        except OSError:
            is_gone = True
        if is_gone:
            self.close()

    def _register(self, handler: Callable[[], None]) -> None:
        self._is_registered = True
        self._loop.register(self._fd, handler)
        self._loop.call_at(self._clock() + PATIENCE_SECONDS, (self, "patience"), self.close)

    def _unregister(self) -> None:
        if self._is_registered:
            self._is_registered = False
            self._loop.cancel((self, "patience"))
            self._loop.unregister(self._fd)

    def close(self) -> None:
        """Hang up."""
        self._unregister()
        self._connection.close()
        self.on_close()
        self.on_close = lambda: None


class ControlServer:
    """Accepts clients on the control socket, in the event loop."""

    def __init__(
        self,
        control: Control,
        loop: Loop,
        clock: Clock,
        on_request: Callable[[Client, dict[str, Any]], None],
        report: Callable[[OSError], None],
    ) -> None:
        """Serve from now on.

        Args:
            control: the listening end.
            loop: the event loop.
            clock: monotonic seconds.
            on_request: takes each client with its request; must answer the client, now or later.
            report: takes the error where a client cannot be accepted; those that wait are accepted a second later.
        """
        self._control, self._loop, self._clock = control, loop, clock
        self._on_request, self._report = on_request, report
        self._clients: dict[Client, None] = {}
        loop.register(control.fd, self._on_connect)

    def _on_connect(self) -> None:
        try:
            connection = self._control.accept()
        except OSError as error:
            self._report(error)
            self._loop.unregister(self._control.fd)  # the client still waits: the loop would not rest
            self._loop.call_at(self._clock() + _PAUSE_SECONDS, (self, "go on"), self._go_on)
            return
        if connection is None:
            return
        if len(self._clients) >= MOST_CLIENTS:
            next(iter(self._clients)).close()
        client = Client(connection, self._loop, self._clock)
        self._clients[client] = None
        client.on_close = lambda: self._clients.pop(client, None)
        client.await_request(lambda request: self._on_request(client, request))

    def _go_on(self) -> None:
        self._loop.register(self._control.fd, self._on_connect)


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

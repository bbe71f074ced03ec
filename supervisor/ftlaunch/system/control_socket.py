"""The control socket (unix, mode 0600), on which `ftctl` sends requests, and ranks pass on a SIGTERM of their own.

A client sends one line with a JSON object, and receives one. The server runs in the event loop and never blocks it. A
client has a few seconds to send its request and to take its answer, and the number of clients is limited: a client that
connects and waits, or does not read, is disconnected.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ftlaunch.common.line_splitter import LineSplitter
from ftlaunch.system.loop import Clock, Loop

SOCKET = "control.sock"
_MOST = 4096
"""most bytes of a request"""
MOST_CLIENTS = 64
"""most connections at once"""
PATIENCE_SECONDS = 10.0
"""seconds for a request to come, and for an answer to be taken"""
_PAUSE_SECONDS = 1.0
"""seconds until connections are accepted again after a lack of descriptors"""


class Control:
    """The listening socket."""

    def __init__(self, directory: Path) -> None:
        """Listen on a socket in `directory`, which only this user may enter. Raises OSError."""
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
        """Return the non-blocking connection of a client; None if no client waits. Raises OSError."""
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
    """One connection, served in the event loop: one request, one answer."""

    def __init__(self, connection: socket.socket, loop: Loop, clock: Clock) -> None:
        """Take over a connection.

        Args:
            connection: a non-blocking socket.
            loop: the event loop.
            clock: returns monotonic seconds.
        """
        self._connection = connection
        self._loop = loop
        self._clock = clock
        self._fd = connection.fileno()
        self._splitter = LineSplitter(_MOST)
        self._unsent = memoryview(b"")
        self._is_registered = False
        self.on_close: Callable[[], None] = lambda: None
        """called once the connection is closed"""

    def await_request(self, on_request: Callable[[dict[str, Any]], None]) -> None:
        """Have `on_request` called with the client's request. A client without a valid request in time is dropped."""
        self._register(lambda: self._receive(on_request))

    def _receive(self, on_request: Callable[[dict[str, Any]], None]) -> None:
        """Read from the client, and pass on its request once that is complete."""
        try:
            request = self.request()
        except (OSError, ValueError):
            self.close()
            return
        if request is not None:
            self._unregister()
            on_request(request)

    def request(self) -> dict[str, Any] | None:
        """Read from the client, and return the request once its line is complete; None before.

        Raises:
            ConnectionError: the client is gone.
            ValueError: the line is no JSON object, or is too long.
        """
        try:
            block = self._connection.recv(_MOST)
        except BlockingIOError:
            return None
        if not block:
            raise ConnectionError("closed")
        lines = self._splitter.split(block)
        if self._splitter.too_long:
            raise ValueError("request too long")
        if not lines:
            return None
        try:
            request = json.loads(lines[0])
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(request, dict):
            raise ValueError("not an object")
        return request

    def answer(self, reply: dict[str, Any]) -> None:
        """Send the reply without waiting, and close the connection once all is sent."""
        self._unsent = memoryview(json.dumps(reply).encode() + b"\n")
        self._send()

    def _send(self) -> None:
        """Send what the client takes now; the event loop calls again when the client takes more."""
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
        """Close the connection if the client has hung up before taking its answer. Ignore what the client sends."""
        try:
            is_gone = not self._connection.recv(_MOST)
        except BlockingIOError:
            return
        except OSError:
            is_gone = True
        if is_gone:
            self.close()

    def _register(self, handler: Callable[[], None]) -> None:
        """Watch the connection, and close it when the client's time is over."""
        self._is_registered = True
        self._loop.register(self._fd, handler)
        self._loop.call_at(self._clock() + PATIENCE_SECONDS, (self, "patience"), self.close)

    def _unregister(self) -> None:
        if self._is_registered:
            self._is_registered = False
            self._loop.cancel((self, "patience"))
            self._loop.unregister(self._fd)

    def close(self) -> None:
        """Close the connection."""
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
        """Register the listening socket with the event loop.

        Args:
            control: the listening socket.
            loop: the event loop.
            clock: returns monotonic seconds.
            on_request: takes each client with its request; must answer the client, now or later.
            report: takes the error if a client cannot be accepted. Waiting clients are accepted a second later.
        """
        self._control = control
        self._loop = loop
        self._clock = clock
        self._on_request = on_request
        self._report = report
        self._clients: dict[Client, None] = {}  # in the order of their arrival
        loop.register(control.fd, self._on_connect)

    def _on_connect(self) -> None:
        """Accept a client. If there are too many, the oldest one is dropped."""
        try:
            connection = self._control.accept()
        except OSError as error:
            self._report(error)
            # The client still waits, so that the descriptor stays readable and the loop would spin.
            self._loop.unregister(self._control.fd)
            self._loop.call_at(self._clock() + _PAUSE_SECONDS, (self, "go on"), self._resume_accepting)
            return
        if connection is None:
            return
        if len(self._clients) >= MOST_CLIENTS:
            next(iter(self._clients)).close()
        client = Client(connection, self._loop, self._clock)
        self._clients[client] = None
        client.on_close = lambda: self._clients.pop(client, None)
        client.await_request(lambda request: self._on_request(client, request))

    def _resume_accepting(self) -> None:
        self._loop.register(self._control.fd, self._on_connect)


def ask(path: Path, request: dict[str, Any], timeout: float = 5.0) -> dict[str, Any]:
    """Send a request to the server of a control socket, and return the reply. Used by clients; waits.

    Args:
        path: the control socket.
        request: the request.
        timeout: seconds for each step of the exchange.

    Raises:
        OSError: no server listens, or it does not answer in time.
        ValueError: the reply is no JSON object.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as file:
            reply = json.loads(file.readline())
    if not isinstance(reply, dict):
        raise ValueError("not an object")
    return reply

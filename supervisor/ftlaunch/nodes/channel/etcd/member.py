"""Requests to one member of etcd over one kept connection. Each request ends by its deadline, even a resolver's."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from typing import Any

from ftlaunch.system.name_lookup import addresses_of, ask_resolver

_MOST_BYTES = 1 << 20  # of an answer


class EtcdMember:
    """The connection to one member. For one thread at a time."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        if tls is not None:
            tls.sslsocket_class = _BoundedTlsSocket
        self._addresses: list[str] = []  # of the host; the one that answered last comes first
        self._connection: http.client.HTTPConnection | None = None

    def post(self, path: str, content: bytes, headers: dict[str, str], seconds: float) -> tuple[int, bytes]:
        """Post a request.

        The request may be carried out although this raises, and may be carried out twice: a kept connection may have
        ended before the request was sent or after it was received, and the request is then sent again on a new one.

        Args:
            path: the path of the JSON gateway.
            content: the body.
            headers: the HTTP headers.
            seconds: the time for the whole call.

        Returns:
            The HTTP status and the content of the answer.

        Raises:
            OSError: there is no answer; TimeoutError if the time is over.
            http.client.HTTPException: the server does not speak HTTP.
            ValueError: the answer is too long.
        """
        until = time.monotonic() + seconds
        kept = self._connection is not None
        try:
            return self._exchange(path=path, content=content, headers=headers, until=until)
        except TimeoutError:
            self.close()
            raise
        except (OSError, http.client.HTTPException):
            self.close()
            if not kept:
                raise
        try:
            return self._exchange(path=path, content=content, headers=headers, until=until)
        except (OSError, http.client.HTTPException):
            self.close()
            raise

    def close(self) -> None:
        """End the connection. The next request makes a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, path: str, content: bytes, headers: dict[str, str], until: float) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = self._connect(until)
        connection = self._connection
        assert isinstance(connection.sock, _BoundedSocket)
        connection.sock.until = until
        connection.sock.settimeout(_seconds_left(until))  # for sending
        connection.request("POST", path, body=content, headers=headers)
        answer = connection.getresponse()
        body = answer.read(_MOST_BYTES + 1)
        if answer.will_close or len(body) > _MOST_BYTES:
            self.close()
        if len(body) > _MOST_BYTES:
            raise ValueError(f"its answer has more than {_MOST_BYTES} bytes")
        if answer.length:  # read(amount) returns what came before the end, without an error
            raise ConnectionError("its answer was cut short")
        return answer.status, body

    def _connect(self, until: float) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._host, self._port)
        connection.auto_open = 0
        connection.sock = self._reach(until)
        return connection

    def _reach(self, until: float) -> socket.socket:
        """Connect to the first of the host's addresses that answers. Raises OSError if none does."""
        addresses = self._addresses or _addresses(self._host, self._port, until)
        self._addresses = []
        problem = OSError(f"{self._host} has no address")
        for address in addresses:
            try:
                reached = self._secured(socket.create_connection((address, self._port), _seconds_left(until)))
            except OSError as error:
                problem = error
                continue
            self._addresses = [address, *(other for other in addresses if other != address)]
            return reached
        raise problem

    def _secured(self, plain: socket.socket) -> socket.socket:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            return _BoundedSocket(fileno=plain.detach())
        try:
            return self._tls.wrap_socket(plain, server_hostname=self._host)
        except OSError:
            plain.close()
            raise


class _BoundedSocket(socket.socket):
    """A socket each read of which ends by `until`, however slowly bytes come.

    A timeout of a socket begins again with each byte, so that a server that sends a header every second would keep a
    request for ever. http.client reads through `socket.makefile()`, whose SocketIO calls `recv_into` for each read.
    """

    until = 0.0
    """the deadline, in monotonic seconds"""

    def recv_into(self, *args: Any, **named: Any) -> int:
        """Receive bytes by the deadline. Raises TimeoutError."""
        self.settimeout(_seconds_left(self.until))
        return super().recv_into(*args, **named)


class _BoundedTlsSocket(_BoundedSocket, ssl.SSLSocket):
    """A _BoundedSocket that speaks TLS: SSLSocket decrypts in `recv_into`."""


def _seconds_left(until: float) -> float:
    """Return the seconds until a deadline. Raises TimeoutError if none are left."""
    seconds = until - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds


def _addresses(host: str, port: int, until: float) -> list[str]:
    """Return the numeric addresses of a host.

    Raises:
        OSError: the host cannot be resolved, or the resolver does not answer by the deadline `until`.
    """
    try:
        return addresses_of(host, port, socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass
    question = ask_resolver(host, port)
    if not question.wait(_seconds_left(until)):
        raise OSError(f"the resolver does not answer for {host}")
    if not question.addresses:
        raise OSError(f"{host} cannot be resolved ({question.why})")
    return question.addresses

"""One member of etcd: requests over one connection that is kept. Every one ends by its deadline."""

from __future__ import annotations

import functools
import http.client
import io
import socket
import ssl
import time
from typing import Any

from ftlaunch.system.name_lookup import addresses_of, ask_resolver

_MOST = 1 << 20  # bytes of an answer


class EtcdMember:
    """Not for two threads at a time."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._addresses: list[str] = []  # of the host; that which has answered comes first
        self._connection: http.client.HTTPConnection | None = None

    def post(self, path: str, content: bytes, headers: dict[str, str], seconds: float) -> tuple[int, bytes]:
        """HTTP status and content of the answer. Raises OSError, http.client.HTTPException or ValueError.

        What is asked may be done although this raises, and may be done twice: a connection that was kept may have ended
        before the request was sent, or after it was heard.
        """
        until = time.monotonic() + seconds
        kept = self._connection is not None
        try:
            return self._exchange(path, content, headers, until)
        except TimeoutError:
            self.close()
            raise
        except (OSError, http.client.HTTPException):
            self.close()
            if not kept:
                raise
        try:
            return self._exchange(path, content, headers, until)
        except (OSError, http.client.HTTPException):
            self.close()
            raise

    def close(self) -> None:
        """Give the connection back; the next request makes another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, path: str, content: bytes, headers: dict[str, str], until: float) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = self._connect(until)
        connection = self._connection
        connection.sock.settimeout(_left(until))
        connection.response_class = functools.partial(_BoundedResponse, until=until)  # type: ignore[assignment]
        connection.request("POST", path, content, headers)
        answer = connection.getresponse()
        told = answer.read(_MOST + 1)
        if answer.will_close or len(told) > _MOST:
            self.close()
        if len(told) > _MOST:
            raise ValueError(f"its answer has more than {_MOST} bytes")
        return answer.status, told

    def _connect(self, until: float) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._host, self._port)
        connection.auto_open = 0
        connection.sock = self._reach(until)
        return connection

    def _reach(self, until: float) -> socket.socket:
        """A connection to the first of the host's addresses at which there is one."""
        addresses = self._addresses or _addresses(self._host, self._port, until)
        self._addresses = []
        problem = OSError(f"{self._host} has no address")
        for address in addresses:
            try:
                reached = self._secured(socket.create_connection((address, self._port), _left(until)))
            except OSError as error:
                problem = error
                continue
            self._addresses = [address, *(other for other in addresses if other != address)]
            return reached
        raise problem

    def _secured(self, plain: socket.socket) -> socket.socket:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            return plain
        try:
            return self._tls.wrap_socket(plain, server_hostname=self._host)
        except OSError:
            plain.close()
            raise


class _BoundedResponse(http.client.HTTPResponse):
    """Is read until a deadline, however slowly it comes."""

    def __init__(self, sock: socket.socket, *args: Any, until: float, **named: Any) -> None:
        super().__init__(sock, *args, **named)
        self.fp.close()
        self.fp = io.BufferedReader(_BoundedSocket(sock, until))


class _BoundedSocket(io.RawIOBase):
    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock = sock
        self._until = until
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(_left(self._until))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _left(until: float) -> float:
    """Seconds. Raises TimeoutError where there are none."""
    seconds = until - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds


def _addresses(host: str, port: int, until: float) -> list[str]:
    """The numeric addresses of a host. Raises OSError; a resolver that does not answer is not waited for."""
    try:
        return addresses_of(host, port, socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass
    question = ask_resolver(host, port)
    if not question.wait(_left(until)):
        raise OSError(f"the resolver does not answer for {host}")
    if not question.addresses:
        raise OSError(f"{host} cannot be resolved ({question.why})")
    return question.addresses

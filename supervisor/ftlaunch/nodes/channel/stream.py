"""A non-blocking TCP socket in an event loop, with a queue of bytes to send.

Nothing here knows frames or tokens.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

from ftlaunch.system.loop import Clock, Loop

SILENCE_SECONDS = 2.0
"""seconds without an answer of the other machine's kernel after which a connection ends; the least that can be set"""
MOST_QUEUED = 16 << 20
"""bytes that may wait to be sent"""
CHUNK = 64 << 10
"""bytes that are received in one turn; each call allocates as many"""
_LAST_CHUNKS = 64  # chunks that are still received after sending has failed
_GONE = {errno.EPIPE, errno.ECONNRESET}
_NO_MEMORY = {errno.ENOBUFS, errno.ENOMEM}
_SHORTAGE_SECONDS = 2.0
"""seconds for which the kernel may lack memory before the connection ends; a node that loses its connection costs a
restart"""
_RETRY_SECONDS = 0.02
"""seconds after which a send that the kernel had no memory for is tried again"""


def resolve(address: str, port: int) -> tuple[int, tuple[object, ...]]:
    """Return the address family and the socket address of a numeric address, without a resolver.

    Raises:
        OSError: the system does not know the address.
        ValueError: `address` is a name, or `port` is no port.
    """
    ip_address(address)
    if not 0 <= port < 1 << 16:
        raise ValueError(f"{port} is no port")
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    family, _, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=flags)[0]
    return family, target


def format_endpoint(address: str, port: int) -> str:
    """Return address and port as people write them. Raises ValueError if `address` is a name."""
    parsed = ip_address(address)
    if isinstance(parsed, IPv6Address):
        return f"{parsed.ipv4_mapped}:{port}" if parsed.ipv4_mapped else f"[{parsed}]:{port}"
    return f"{parsed}:{port}"


def watch_peer(connection: socket.socket, silence_seconds: float = SILENCE_SECONDS) -> None:
    """Have the kernel end a connection once the other side's machine is gone.

    Keepalive asks the other kernel for a sign of life while nothing is sent. The user timeout limits how long sent
    bytes and keepalives may stay unanswered.

    Args:
        connection: a connected TCP socket.
        silence_seconds: the limit; at least SILENCE_SECONDS are used.

    Raises:
        OSError: the connection has ended.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
    connection.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * max(silence_seconds, SILENCE_SECONDS))
    )
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _describe(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def _ignore(_: object = None) -> None:
    """Stand in for a handler that nobody has set."""


class Stream:
    """A TCP socket whose owner sets `on_open`, `on_data` and `on_end`. No handler is called after the end."""

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        connection: socket.socket | None,
        peer: str,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        """Own a socket, without using it before `adopt` or `connect`.

        Args:
            loop: the event loop.
            clock: monotonic seconds.
            connection: a non-blocking socket; None if none could be made, so that only `fail_later` can follow.
            peer: the other side, for people.
            silence_seconds: the limit that `watch_peer` sets.
        """
        self._loop = loop
        self._clock = clock
        self._socket = connection
        self._silence_seconds = silence_seconds
        self.peer = peer
        self.open = False
        self.on_open: Callable[[], None] = _ignore
        self.on_data: Callable[[bytes], None] = _ignore
        self.on_end: Callable[[str], None] = _ignore
        """called with the reason, a clause that follows a colon"""
        self._queue: deque[bytes] = deque()
        self._sent = 0  # bytes of the queue's first element that were sent
        self.queued = 0
        """bytes that wait to be sent"""
        self._registered = False  # the loop watches the socket
        self._watching = False  # the loop also watches for room to write
        self._over = False
        self._short_since: float | None = None  # since when the kernel lacks memory for this connection

    # --- beginning ----------------------------------------------------------------------------------------

    def adopt(self) -> None:
        """Begin with a connected socket."""
        if self._register():
            self._opened()

    def connect(self, target: tuple[object, ...]) -> None:
        """Begin to connect. `on_open` or `on_end` is called later from the loop."""
        assert self._socket is not None
        error = self._socket.connect_ex(target)
        if error not in (0, errno.EINPROGRESS):
            self.fail_later(os.strerror(error))
            return
        if self._register():
            self._watch_writes(self._connected)

    def fail_later(self, why: str) -> None:
        """Have the loop call `on_end` later, because the caller may be in the middle of something."""
        self._loop.call_at(self._clock(), (self, "end"), lambda: self._end(why))

    def _register(self) -> bool:
        """Watch the socket for bytes to read. Return False if the loop cannot, in which case `on_end` follows."""
        assert self._socket is not None
        try:
            self._loop.register(self._socket.fileno(), self._readable)
        except OSError as error:
            self.fail_later(_describe(error))
            return False
        self._registered = True
        return True

    def _connected(self) -> None:
        assert self._socket is not None
        if error := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._end(os.strerror(error))
            return
        try:
            self._socket.getpeername()
        except OSError:
            return  # not connected yet
        self._watch_writes(None)
        self._opened()

    def _opened(self) -> None:
        assert self._socket is not None
        try:
            watch_peer(self._socket, self._silence_seconds)
        except OSError as error:  # the connection has ended already
            self.fail_later(_describe(error))
            return
        self.open = True
        self.on_open()

    # --- receiving ----------------------------------------------------------------------------------------

    def _readable(self) -> None:
        if self.open:
            self._receive()
        elif self._socket is not None:
            self._connected()

    def _receive(self) -> bool:
        """Receive once. Return whether there was anything."""
        if self._socket is None:
            return False
        try:
            data = self._socket.recv(CHUNK)
        except BlockingIOError:
            return False
        except OSError as error:
            if not self._lacks_memory(error):
                self._end(_describe(error))
            return False
        self._short_since = None
        if not data:
            self._end("it was closed by the other side")
            return False
        self.on_data(data)
        return True

    # --- sending ------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send `data`, or queue what the socket does not take. Never blocks, and never calls `on_end` itself."""
        if self._socket is None or not self.open:
            return
        self._queue.append(data)
        self.queued += len(data)
        if len(self._queue) == 1:  # else the bytes before still wait for the socket
            self._flush()

    def _flush(self) -> None:
        """Send as many queued bytes as the socket takes."""
        if self._socket is None:
            return
        try:
            while self._queue:
                self._advance(self._socket.send(memoryview(self._queue[0])[self._sent :]))
        except BlockingIOError:
            self._watch_writes(self._flush)
            return
        except OSError as error:
            if self._lacks_memory(error):
                self._watch_writes(None)
                self._loop.call_at(self._clock() + _RETRY_SECONDS, (self, "retry"), self._flush)
            else:
                self._cannot_send(error)
            return
        self._short_since = None
        self._watch_writes(None)

    def _lacks_memory(self, error: OSError) -> bool:
        """Return whether a call failed for lack of kernel memory, and the shortage is short enough for a retry."""
        if error.errno not in _NO_MEMORY:
            return False
        now = self._clock()
        if self._short_since is None:
            self._short_since = now
        return now - self._short_since < _SHORTAGE_SECONDS

    def _watch_writes(self, handler: Callable[[], None] | None) -> None:
        if self._socket is not None and (handler is not None or self._watching):
            self._loop.watch_writes(self._socket.fileno(), handler)
            self._watching = handler is not None

    def _advance(self, count: int) -> None:
        self._sent += count
        self.queued -= count
        if self._sent == len(self._queue[0]):
            self._queue.popleft()
            self._sent = 0

    def _cannot_send(self, error: OSError) -> None:
        """Drop the queue, and receive what the other side sent before it ended: its last words count."""
        self._queue.clear()
        self.queued = self._sent = 0
        self._watch_writes(None)
        why = "it was closed by the other side" if error.errno in _GONE else _describe(error)
        self._loop.call_at(self._clock(), (self, "end"), lambda: self._read_out(why))

    def _read_out(self, why: str) -> None:
        for _ in range(_LAST_CHUNKS):
            if not self._receive():
                break
        self._end(why)

    # --- the end ------------------------------------------------------------------------------------------

    def _end(self, why: str) -> None:
        if not self._over:
            self.close()
            self.on_end(why)

    def close(self) -> None:
        """End the connection without a call of `on_end`. Queued bytes are dropped."""
        connection = self._socket
        self._socket = None
        self._over = True
        self.open = False
        self._loop.cancel((self, "end"))
        self._loop.cancel((self, "retry"))
        self._queue.clear()
        self.queued = 0
        if connection is not None:
            if self._registered:
                self._loop.unregister(connection.fileno())
            connection.close()

"""A non-blocking TCP socket in the loop, and the bytes that wait to be sent. Nothing here knows of frames or tokens."""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

from ftlaunch.system.loop import Clock, Loop

SILENCE_SECONDS = 2.0
"""without an answer of the other machine's kernel, after which a connection ends if no longer time is given"""
MOST_QUEUED = 16 << 20
"""bytes that may wait to be sent"""
_CHUNK = 64 << 10  # bytes that are received in one turn; room for them is made at each call
_LAST_CHUNKS = 64  # chunks that are received after an error of sending: what the other side sent before it ended
_GONE = {errno.EPIPE, errno.ECONNRESET}
_SHORT = {errno.ENOBUFS, errno.ENOMEM}
_SHORTAGE_SECONDS = 2.0
"""for which the kernel may have no memory for a connection: a node whose connection ends costs a restart"""
_AGAIN_SECONDS = 0.02
"""until something is sent again, where there was no memory for it"""


def resolved(address: str, port: int) -> tuple[int, tuple[object, ...]]:
    """Family and socket address of a numeric address; asks no resolver. Raises OSError, and ValueError for a name."""
    ip_address(address)
    if not 0 <= port < 1 << 16:
        raise ValueError(f"{port} is no port")
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    family, _, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=flags)[0]
    return family, target


def named(address: str, port: int) -> str:
    """Address and port as people write them."""
    parsed = ip_address(address)
    if isinstance(parsed, IPv6Address):
        return f"{parsed.ipv4_mapped}:{port}" if parsed.ipv4_mapped else f"[{parsed}]:{port}"
    return f"{parsed}:{port}"


def watch_peer(connection: socket.socket, silence_seconds: float = SILENCE_SECONDS) -> None:
    """Have the kernel say when the other side's machine is gone. Raises OSError.

    Keepalive asks for a sign of it while nothing is sent; the user timeout is how long there may be none:
    silence_seconds, and SILENCE_SECONDS at least.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
    connection.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * max(silence_seconds, SILENCE_SECONDS))
    )
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _words(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def _ignore(_: object = None) -> None:
    """Stand in for a handler that nobody has set."""


class Stream:
    """A socket; `on_open`, `on_data` and `on_end` are set by the owner. After its end nothing is called."""

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        connection: socket.socket | None,
        peer: str,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        """connection: non-blocking; None is one that could not be made. silence_seconds: see `watch_peer`."""
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
        self._sent = 0  # bytes of the queue's first element
        self.queued = 0
        """bytes that wait to be sent"""
        self._registered = self._watching = self._over = False
        self._short_since: float | None = None  # since when the kernel has no memory for this connection

    # --- beginning ----------------------------------------------------------------------------------------

    def adopt(self) -> None:
        """Begin with a socket that is connected."""
        if self._register():
            self._opened()

    def connect(self, target: tuple[object, ...]) -> None:
        """Begin to connect; whatever becomes of it is told in a later call from the loop."""
        assert self._socket is not None
        error = self._socket.connect_ex(target)
        if error not in (0, errno.EINPROGRESS):
            self.fail_later(os.strerror(error))
            return
        if self._register():
            self._watch_writes(self._connected)

    def fail_later(self, why: str) -> None:
        """End in a later call from the loop: whoever calls now is in the middle of something."""
        self._loop.call_at(self._clock(), (self, "end"), lambda: self._end(why))

    def _register(self) -> bool:
        """Have the loop tell when there is something to read; False where it cannot, and the end is told later."""
        assert self._socket is not None
        try:
            self._loop.register(self._socket.fileno(), self._readable)
        except OSError as error:
            self.fail_later(_words(error))
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
            return  # not yet
        self._watch_writes(None)
        self._opened()

    def _opened(self) -> None:
        assert self._socket is not None
        try:
            watch_peer(self._socket, self._silence_seconds)
        except OSError as error:  # it has ended already
            self.fail_later(_words(error))
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
        """Receive once; whether there was anything."""
        if self._socket is None:
            return False
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return False
        except OSError as error:
            if not self._lacks_memory(error):
                self._end(_words(error))
            return False
        self._short_since = None
        if not data:
            self._end("it was closed by the other side")
            return False
        self.on_data(data)
        return True

    # --- sending ------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send, or queue; never blocks and ends nothing at once."""
        if self._socket is None or not self.open:
            return
        self._queue.append(data)
        self.queued += len(data)
        if len(self._queue) == 1:  # else it is waited for the socket to take what came before
            self._flush()

    def _flush(self) -> None:
        """Send as much as the socket takes."""
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
                self._loop.call_at(self._clock() + _AGAIN_SECONDS, (self, "again"), self._flush)
            else:
                self._cannot_send(error)
            return
        self._short_since = None
        self._watch_writes(None)

    def _lacks_memory(self, error: OSError) -> bool:
        """Whether a call has failed because the kernel has no memory, and not for long: it is made again then."""
        if error.errno not in _SHORT:
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
        """What the other side sent before it ended still waits in the socket, and its last words count."""
        self._queue.clear()
        self.queued = self._sent = 0
        self._watch_writes(None)
        why = "it was closed by the other side" if error.errno in _GONE else _words(error)
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
        """End without a word; what is queued is dropped."""
        connection = self._socket
        self._socket = None
        self._over = True
        self.open = False
        self._loop.cancel((self, "end"))
        self._loop.cancel((self, "again"))
        self._queue.clear()
        self.queued = 0
        if connection is not None:
            if self._registered:
                self._loop.unregister(connection.fileno())
            connection.close()

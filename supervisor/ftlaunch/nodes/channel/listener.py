"""The head's end of connections: accepts peers, and hands over those that know the token.

Runs in the head's event loop.
"""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Callable

from ftlaunch.nodes.channel.connection import Connection
from ftlaunch.nodes.channel.handshake import NONCE, PROTOCOL, Handshake, Role
from ftlaunch.nodes.channel.refusals import Refusals
from ftlaunch.nodes.channel.stream import SILENCE_SECONDS, Stream, format_endpoint, resolve
from ftlaunch.system.loop import Clock, Loop

MOST_STRANGERS = 64
"""the number of connections at once whose other side has not proven yet that it knows the token"""
FAIR_CHANCE_SECONDS = 0.1
"""seconds that each such connection has before it can be dropped for a newer one"""
_BACKLOG = 4096  # the kernel has a limit of its own: net.core.somaxconn
_MOST_A_TURN = 16  # connections accepted in one turn of the loop, so that others are answered in between
_PAUSE_SECONDS = 0.1  # without accepting while the system has no descriptor or no memory left
_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Listener:
    """Listens, and calls `accepted` with each connection that is ready.

    A stranger is a connection whose other side has not proven yet that it knows the token. With MOST_STRANGERS of them,
    the oldest is dropped for a newer one, but never within FAIR_CHANCE_SECONDS; until then the newer one waits in the
    kernel. Therefore neither a thousand agents at once nor a flood of strangers keeps an agent out.
    """

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        address: str,
        port: int,
        token: bytes,
        accepted: Callable[[Connection], None],
        say: Callable[[str], None],
        *,
        version: str = PROTOCOL,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        """Listen from now on.

        Args:
            loop: the event loop.
            clock: monotonic seconds.
            address: a numeric address.
            port: the port; 0 for any free one.
            token: the secret that peers must know.
            accepted: called with each connection that is ready.
            say: called with a sentence about refused connections.
            version: the version of the messages; peers must have the same.
            silence_seconds: seconds without an answer of a peer's kernel after which its connection ends.

        Raises:
            OSError: the address or the port cannot be used.
            ValueError: `address` is a name.
        """
        self._silence_seconds = silence_seconds
        self._loop = loop
        self._clock = clock
        self._token = token
        self._version = version
        self._accepted = accepted
        self.strangers: dict[Connection, float] = {}
        """the moment at which each stranger was accepted, the oldest first"""
        self._greeted: set[Connection] = set()  # those that know the token, and whose version is not known yet
        self._refusals = Refusals(loop, clock, say)
        self._socket = _open_listening_socket(address, port)
        self.port: int = self._socket.getsockname()[1]
        self.paused = False
        """whether newer connections wait in the kernel until there is room for them"""
        self._closed = False
        loop.register(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Stop listening, and end the connections that were not handed over."""
        if self._closed:
            return
        self._closed = True
        self._loop.cancel((self, "go on"))
        if not self.paused:
            self._loop.unregister(self._socket.fileno())
        self._socket.close()
        self._refusals.close()
        for connection in [*self.strangers, *self._greeted]:
            connection.close()
        self.strangers.clear()
        self._greeted.clear()

    # --- accepting ----------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(_MOST_A_TURN):
            if self._must_wait():
                return
            try:
                connection, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._refusals.add(f"a connection cannot be accepted: {error.strerror}")
                    self._pause(self._clock() + _PAUSE_SECONDS)
                    return
                continue  # this connection has ended already
            self._make_room()
            self._greet(connection, format_endpoint(address[0].partition("%")[0], address[1]))

    def _must_wait(self) -> bool:
        """Return whether there is no room for a newer connection; if so, pause until there is."""
        if len(self.strangers) < MOST_STRANGERS:
            return False
        chance = next(iter(self.strangers.values())) + FAIR_CHANCE_SECONDS
        if self._clock() < chance:
            self._pause(chance)
            return True
        return False

    def _make_room(self) -> None:
        if len(self.strangers) >= MOST_STRANGERS:
            oldest = next(iter(self.strangers))
            oldest.close()
            self._refused(oldest, f"{oldest.peer} was dropped in the handshake for newer connections")

    def _pause(self, until: float) -> None:
        if not self.paused:
            self.paused = True
            self._loop.unregister(self._socket.fileno())
        self._loop.call_at(until, (self, "go on"), self._go_on)

    def _go_on(self) -> None:
        if self.paused and not self._closed:
            self.paused = False
            self._loop.cancel((self, "go on"))
            self._loop.register(self._socket.fileno(), self._accept)

    # --- strangers ----------------------------------------------------------------------------------------

    def _greet(self, accepted: socket.socket, peer: str) -> None:
        accepted.setblocking(False)
        stream = Stream(
            loop=self._loop,
            clock=self._clock,
            connection=accepted,
            peer=peer,
            silence_seconds=self._silence_seconds,
        )
        handshake = Handshake(Role.LISTENER, self._token, secrets.token_bytes(NONCE))
        connection = Connection(
            loop=self._loop, clock=self._clock, stream=stream, handshake=handshake, version=self._version
        )
        connection.on_proven = lambda: self._proven(connection)
        connection.on_ready = lambda: self._hand_over(connection)
        connection.on_end = lambda why: self._refused(connection, why)
        self.strangers[connection] = self._clock()
        stream.adopt()

    def _proven(self, connection: Connection) -> None:
        self._leave(connection)
        self._greeted.add(connection)

    def _leave(self, connection: Connection) -> None:
        self._greeted.discard(connection)
        if self.strangers.pop(connection, None) is not None:
            self._go_on()

    def _refused(self, connection: Connection, why: str) -> None:
        self._leave(connection)
        self._refusals.add(why)

    def _hand_over(self, connection: Connection) -> None:
        self._greeted.discard(connection)
        connection.forget_handlers()
        self._accepted(connection)
        if connection.ready:
            connection.on_ready()


def _open_listening_socket(address: str, port: int) -> socket.socket:
    """Return a non-blocking socket that listens. Raises OSError, and ValueError if `address` is a name."""
    family, target = resolve(address, port)
    listening = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listening.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # a new head can bind its predecessor's port at once
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # :: listens on IPv4, too
        listening.bind(target)
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening

"""Both ends of channels in one real event loop, which a test turns until a condition holds."""

from __future__ import annotations

import select
import selectors
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.nodes.channel.connection import Connection, connect
from ftlaunch.nodes.channel.handshake import PROTOCOL
from ftlaunch.nodes.channel.listener import Listener

TOKEN = b"the token of this job"
DEADLINE = 60.0  # seconds for each wait
HERE = "127.0.0.1"

# A head in a process of its own: prints its port, accepts an agent, and says so.
HEAD = f"""
import time
from tests.support.channels import Place
place = Place()
place.listen()
print(place.listener.port, flush=True)
place.until(lambda: place.accepted, "an agent")
print("accepted", flush=True)
place.until(lambda: False, "the end", {DEADLINE!r} * 10)
"""


class _Lasting(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    def close(self) -> None:
        """Stay open, because the loop is run again."""


class End:
    """One end of a channel, with all that its owner received."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.was_ready = 0
        self.received: list[dict[str, Any]] = []
        self.ends: list[str] = []
        connection.on_ready = self._ready
        connection.on_message = self.received.append
        connection.on_end = self.ends.append

    def _ready(self) -> None:
        self.was_ready += 1


class Place:
    """An event loop with at most one listener and the ends of its channels; its own handler."""

    def __init__(self) -> None:
        self.loop = EventLoop[str](time.monotonic, _Lasting())
        self.listener: Listener | None = None
        self.accepted: list[End] = []
        self.connected: list[End] = []
        self.said: list[str] = []
        self._condition: Callable[[], object] = lambda: True
        self._deadline = 0.0

    def listen(
        self, address: str = HERE, port: int = 0, token: bytes = TOKEN, version: str = PROTOCOL, **options: float
    ) -> Listener:
        self.listener = Listener(
            loop=self.loop,
            clock=time.monotonic,
            address=address,
            port=port,
            token=token,
            accepted=self._accept,
            say=self.said.append,
            version=version,
            **options,
        )
        return self.listener

    def _accept(self, connection: Connection) -> None:
        self.accepted.append(End(connection))

    def connect(
        self,
        port: int,
        address: str = HERE,
        token: bytes = TOKEN,
        version: str = PROTOCOL,
        within: float = DEADLINE,
        **options: float,
    ) -> End:
        deadline = time.monotonic() + within
        connection = connect(
            loop=self.loop,
            clock=time.monotonic,
            address=address,
            port=port,
            token=token,
            deadline=deadline,
            version=version,
            **options,
        )
        end = End(connection)
        self.connected.append(end)
        return end

    def pair(self, **options: float) -> tuple[End, End]:
        """Return the connecting and the accepting end of a channel that is ready."""
        listener = self.listener or self.listen(**options)
        near = self.connect(listener.port, **options)
        count = len(self.accepted)
        self.until(lambda: near.was_ready and len(self.accepted) > count, f"a channel; {near.ends} {self.said}")
        return near, self.accepted[-1]

    def stranger(self) -> socket.socket:
        """Return a plain connection to the listener, whose calls time out."""
        assert self.listener is not None
        return socket.create_connection((HERE, self.listener.port), timeout=DEADLINE)

    def until(self, condition: Callable[[], object], what: str, seconds: float = DEADLINE) -> None:
        """Turn the loop until the condition holds."""
        self._condition = condition
        self._deadline = time.monotonic() + seconds
        self.loop.run(self)
        assert condition(), f"waited {seconds:.0f} s in vain for {what}"

    def turn(self) -> None:
        """Turn the loop at least once."""
        before = self.loop.turn
        self.until(lambda: self.loop.turn > before, "a turn")

    @property
    def listen_port(self) -> int:
        assert self.listener is not None
        return self.listener.port

    @property
    def strangers(self) -> list[Connection]:
        """The connections whose other sides have not proven yet that they know the token."""
        assert self.listener is not None
        return list(self.listener.strangers)

    @property
    def paused(self) -> bool:
        assert self.listener is not None
        return self.listener.paused

    def hung_up(self, stranger: socket.socket) -> bytes:
        """Wait until the listener ends a stranger's connection; return what the listener sent to the stranger."""
        stranger.setblocking(False)
        received: list[bytes] = []

        def over() -> bool:
            try:
                while data := stranger.recv(4096):
                    received.append(data)
            except BlockingIOError:
                return False
            except ConnectionResetError:
                pass
            return True

        self.until(over, "the end of a stranger's connection")
        return b"".join(received)

    def close(self) -> None:
        for end in [*self.accepted, *self.connected]:
            end.connection.close()
        if self.listener is not None:
            self.listener.close()

    # --- the loop's handler -------------------------------------------------------------------------------

    def handle(self, event: str) -> None:
        raise AssertionError(event)

    def poll(self) -> None:
        """Do nothing: everything here happens on descriptors."""

    def next_poll_at(self) -> float:
        return time.monotonic() + 0.01

    @property
    def over(self) -> bool:
        return bool(self._condition()) or time.monotonic() > self._deadline


def is_readable(connection: socket.socket) -> bool:
    """Return whether something can be read from a socket now, or accepted."""
    return bool(select.select([connection], [], [], 0)[0])


def python(source: str) -> list[str]:
    """Return the command line of a process that runs `source`."""
    return [sys.executable, "-c", source]

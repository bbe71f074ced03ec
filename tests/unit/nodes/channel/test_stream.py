"""A connection outlives a moment in which the kernel has no memory for it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from ftlaunch.nodes.channel.stream import Stream


class World:
    """The loop, the clock and the socket of one stream."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: dict[Any, tuple[float, Callable[[], None]]] = {}
        self.error: OSError | None = None
        self.sent, self.incoming = b"", b""
        self.readable: Callable[[], None] = lambda: None
        loop: Any = self
        connection: Any = self
        self.ends: list[str] = []
        self.heard: list[bytes] = []
        self.stream = Stream(loop, lambda: self.now, connection, "peer")
        self.stream.on_end, self.stream.on_data = self.ends.append, self.heard.append
        self.stream.adopt()

    def live(self, seconds: float) -> None:
        """Let the time pass: what is due is called, and what can be read is."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.01
            for name, (when, handler) in list(self.due.items()):
                if when <= self.now:
                    del self.due[name]
                    handler()
            if self.incoming:
                self.readable()

    # --- the loop

    def register(self, fd: int, handler: Callable[[], None]) -> None:
        """Keep the handler that reads from the one socket."""
        self.readable = handler

    def unregister(self, fd: int) -> None:
        """Do nothing: the test ends with the stream."""

    def watch_writes(self, fd: int, handler: Callable[[], None] | None) -> None:
        """Do nothing: the socket takes all bytes at once."""

    def call_at(self, when: float, name: Any, handler: Callable[[], None]) -> None:
        """Keep a timer until `live` reaches its moment."""
        self.due[name] = when, handler

    def cancel(self, name: Any) -> None:
        """Forget a timer."""
        self.due.pop(name, None)

    # --- the socket

    def fileno(self) -> int:
        """A number."""
        return 5

    def setsockopt(self, *_: int) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""

    def send(self, data: memoryview) -> int:
        """Take all, or fail."""
        if self.error is not None:
            raise self.error
        self.sent += bytes(data)
        return len(data)

    def recv(self, size: int) -> bytes:
        """Give what there is, or fail."""
        if self.error is not None:
            raise self.error
        block, self.incoming = self.incoming, b""
        return block


@pytest.fixture(params=[errno.ENOBUFS, errno.ENOMEM])
def short(request: pytest.FixtureRequest) -> OSError:
    return OSError(request.param, "no memory")


def test_what_cannot_be_sent_for_a_moment_is_sent_later_in_order(short: OSError) -> None:
    """Taken out: the connection ends, and a node is lost for one failed call."""
    world = World()
    world.error = short
    world.stream.send(b"one ")
    world.stream.send(b"two ")
    world.live(1.0)
    world.error = None
    world.live(0.1)
    world.stream.send(b"three")
    assert (world.sent, world.ends) == (b"one two three", [])


def test_what_cannot_be_received_for_a_moment_is_received_later(short: OSError) -> None:
    world = World()
    world.incoming, world.error = b"word", short
    world.live(1.0)
    world.error = None
    world.live(0.1)
    assert (world.heard, world.ends) == ([b"word"], [])


def test_a_connection_for_which_there_is_no_memory_for_long_ends(short: OSError) -> None:
    world = World()
    world.error = short
    world.stream.send(b"one")
    world.live(2.5)
    assert len(world.ends) == 1


def test_another_error_ends_it_at_once() -> None:
    world = World()
    world.error = OSError(errno.EHOSTUNREACH, "no route")
    world.stream.send(b"one")
    world.live(0.1)
    assert len(world.ends) == 1


def test_moments_without_memory_are_not_added_up(short: OSError) -> None:
    world = World()
    for _ in range(5):
        world.error = short
        world.stream.send(b".")
        world.live(1.5)
        world.error = None
        world.live(0.1)
    assert (world.sent, world.ends) == (b".....", [])

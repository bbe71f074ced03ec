"""One connection between an agent and the head: messages both ways, once both have proven that they know the token."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Callable, Mapping
from typing import Any

from ftlaunch.nodes.channel.framing import (
    LONGEST_GREETING,
    LONGEST_MESSAGE,
    OVERHEAD,
    FrameDecoder,
    FrameError,
    Opener,
    Sealer,
)
from ftlaunch.nodes.channel.framing import framed as frame_of
from ftlaunch.nodes.channel.handshake import NONCE, Handshake, Role, same_version
from ftlaunch.nodes.channel.stream import MOST_QUEUED, SILENCE_SECONDS, Stream, named, resolved
from ftlaunch.system.loop import Clock, Loop
from ftlaunch_contract.files import untrusted_json

HANDSHAKE_SECONDS = 5.0
"""how long a handshake may take once there is a connection"""
BROKEN_OFF = "the handshake was broken off"
"""said where the other side ends the connection before it has proven that it knows the token"""
NO_FTLAUNCH = "what listens there is no head of ftlaunch"
"""said where the other side has not begun as a head does; one that is frozen says nothing, and ends nothing"""


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)  # dumps() would make one for each message


def _ignore(_: object = None) -> None:
    """Stand in for a handler that nobody has set."""


class Connection:
    """Messages to and from one peer.

    `on_ready`, `on_message` and `on_end` are set by the owner; they are called by the loop, never from within `send`.
    `on_end` is called once, with a sentence; after it, and after `close`, nothing is called.
    """

    def __init__(self, loop: Loop, clock: Clock, stream: Stream, handshake: Handshake, version: str) -> None:
        """stream: not begun yet."""
        self._loop = loop
        self._clock = clock
        self._stream = stream
        self._version = version
        self._handshake = handshake
        self._keys: tuple[Sealer, Opener] | None = None
        self._decoder = FrameDecoder(LONGEST_GREETING)
        self._early: list[bytes] = []  # messages that wait for the handshake
        self._early_size = 0
        self._over = self._connected = self._challenged = False
        self._deadline = float("inf")
        self._given = 0.0  # seconds that there were until the deadline when it was set
        self.peer = stream.peer
        self.ready = False
        self.on_ready: Callable[[], None] = _ignore
        self.on_message: Callable[[dict[str, Any]], None] = _ignore
        self.on_end: Callable[[str], None] = _ignore
        self.on_proven: Callable[[], None] = _ignore
        """for the listener: the other side knows the token; its version is not known yet"""
        stream.on_open = self._opened
        stream.on_data = self._take
        stream.on_end = self._stream_ended

    # --- for the owner ------------------------------------------------------------------------------------

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, or queue it, also before `ready`. Raises ValueError for what no peer would take."""
        content = _ENCODER.encode(message).encode()
        if len(content) > LONGEST_MESSAGE:
            raise ValueError(f"a message of {len(content)} bytes cannot be sent, {LONGEST_MESSAGE} are allowed")
        if self._over:
            return
        if self.ready and self._keys is not None:
            self._stream.send(self._keys[0].seal(content))
        else:
            self._early.append(content)
            self._early_size += len(content)
        if (queued := self._stream.queued + self._early_size) > MOST_QUEUED:
            self._over = True
            self.ready = False
            why = f"{queued} bytes wait for {self.peer}, {MOST_QUEUED} may; the connection is ended"
            self._stream.close()
            self._loop.call_at(self._clock(), (self, "deadline"), lambda: self.on_end(why))

    def close(self) -> None:
        """End the connection, without `on_end`; what is still queued is dropped."""
        self._over = True
        self.ready = False
        self._early.clear()
        self._loop.cancel((self, "deadline"))
        self._stream.close()

    def end_by(self, deadline: float) -> None:
        """End the connection at monotonic `deadline` if it is not ready by then; the earliest deadline counts."""
        if deadline < self._deadline:
            self._deadline = deadline
            self._given = deadline - self._clock()
            self._loop.call_at(deadline, (self, "deadline"), self._too_late)

    def forget_handlers(self) -> None:
        """Let the next owner begin without the handlers of the last."""
        self.on_ready = self.on_message = self.on_end = self.on_proven = _ignore

    # --- the handshake ------------------------------------------------------------------------------------

    def _opened(self) -> None:
        self._connected = True
        self.end_by(self._clock() + HANDSHAKE_SECONDS)
        self._stream.send(frame_of(self._handshake.challenge))

    def _shake_hands(self, content: bytes) -> None:
        answer = self._handshake.hear(content)
        self._challenged = True
        if answer is not None:
            self._stream.send(frame_of(answer))
        if self._handshake.proven:
            self._keys = self._handshake.keys()
            version = json.dumps({"protocol": self._version}).encode()
            self._stream.send(self._keys[0].seal(version))
            self.on_proven()

    def _compare_versions(self, message: dict[str, Any]) -> None:
        theirs = same_version(message, self._version)
        if theirs:
            self._end(f"cannot talk to {self.peer}: it runs ftlaunch protocol {theirs}, this is {self._version}")
            return
        assert self._keys is not None
        self.ready = True
        self._decoder.longest = LONGEST_MESSAGE + OVERHEAD
        self._loop.cancel((self, "deadline"))
        early = self._early
        self._early = []
        self._early_size = 0
        for content in early:
            self._stream.send(self._keys[0].seal(content))
        self.on_ready()

    # --- receiving ----------------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        self._decoder.add(data)
        try:
            while not self._over and (content := self._decoder.take()) is not None:
                self._take_frame(content)
        except FrameError as error:
            self._end(f"cannot talk to {self.peer}: {self._stranger()}{error}")

    def _stranger(self) -> str:
        """What is said of a listener that has not begun as one of ours does."""
        return f"{NO_FTLAUNCH}: " if self._handshake.role is Role.CLIENT and not self._challenged else ""

    def _take_frame(self, content: bytes) -> None:
        if self._keys is None:
            self._shake_hands(content)
            return
        message = _parsed(self._keys[1].open(content))
        if self.ready:
            self.on_message(message)
        else:
            try:
                self._compare_versions(message)
            except ValueError as error:
                raise FrameError(str(error)) from None

    # --- the end ------------------------------------------------------------------------------------------

    def _stream_ended(self, why: str) -> None:
        if self.ready:
            self._end(f"the connection to {self.peer} has ended: {why}")
        elif self._connected:
            where = self._stranger() or f"{BROKEN_OFF} (is its token another?): "
            self._end(f"cannot talk to {self.peer}: {where}{why}")
        else:
            self._end(f"cannot connect to {self.peer}: {why}")

    def _too_late(self) -> None:
        if self._connected and self._stranger():
            silent = f"it has said nothing for {self._given:.1f} s: another program listens there, or a head is frozen"
            self._end(f"cannot talk to {self.peer}: {silent}")
        elif self._connected:
            self._end(f"cannot talk to {self.peer}: it did not finish the handshake within {self._given:.1f} s")
        else:
            self._end(f"cannot connect to {self.peer} within {self._given:.1f} s")

    def _end(self, why: str) -> None:
        if not self._over:
            self.close()
            self.on_end(why)


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        return untrusted_json.mapping(untrusted_json.parse(content), "it")
    except ValueError as error:
        raise FrameError(f"it sent a message that cannot be read: {error}") from None


def connect(
    loop: Loop,
    clock: Clock,
    address: str,
    port: int,
    token: bytes,
    deadline: float,
    *,
    version: str,
    silence_seconds: float = SILENCE_SECONDS,
) -> Connection:
    """A connection that begins; it ends unless it is ready by `deadline`, in monotonic seconds.

    Returns at once; what becomes of it is told by `on_ready` or `on_end`, in a later call from the loop. Raises
    ValueError for an address that is a name. silence_seconds: see `watch_peer`.
    """
    peer = named(address, port)
    problem = ""
    connection = None
    target: tuple[object, ...] = ()
    try:
        family, target = resolved(address, port)
        connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError as error:
        problem = error.strerror or str(error)
    stream = Stream(loop, clock, connection, peer, silence_seconds)
    handshake = Handshake(Role.CLIENT, token, secrets.token_bytes(NONCE))
    made = Connection(loop, clock, stream, handshake, version)
    made.end_by(deadline)
    if problem:
        stream.fail_later(problem)
    else:
        stream.connect(target)
    return made

"""One authenticated connection between an agent and the head, which carries messages both ways.

Messages flow once both sides have proven that they know the token, and run the same version of the protocol. All runs
in the event loop of its process. `connect` is the agent's end; `listener.py` makes the head's end.
"""

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
    encode_frame,
)
from ftlaunch.nodes.channel.handshake import NONCE, Handshake, Role, read_other_version
from ftlaunch.nodes.channel.stream import MOST_QUEUED, SILENCE_SECONDS, Stream, format_endpoint, resolve
from ftlaunch.system.loop import Clock, Loop
from ftlaunch_contract.files import untrusted_json

HANDSHAKE_SECONDS = 5.0
"""seconds that a handshake may take once there is a connection"""
BROKEN_OFF = "the handshake was broken off"
"""part of the reason if the other side ends the connection before it has proven that it knows the token"""
NO_FTLAUNCH = "what listens there is no head of ftlaunch"
"""part of the reason if the other side does not begin as a head does; a frozen head sends nothing and ends nothing"""


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)  # json.dumps() would make one for each message


def _ignore(_: object = None) -> None:
    """Stand in for a handler that nobody has set."""


class Connection:
    """Sends messages to one peer and receives its messages.

    The owner sets the handlers. The loop calls them, never from within `send`, in this order:

    on_proven: once, when the other side has proven that it knows the token. Its version is not known yet.
    on_ready: once, when its version is known to be the same. Messages that were queued until then have been sent.
    on_message: for each message that arrives, after `on_ready`.
    on_end: once, at any moment, with a sentence that says why the connection has ended; not after `close`.

    No handler is called after `on_end` or `close`.
    """

    def __init__(self, loop: Loop, clock: Clock, stream: Stream, handshake: Handshake, version: str) -> None:
        """Set the handlers of the stream.

        Args:
            loop: the event loop.
            clock: monotonic seconds.
            stream: the socket, which has not begun yet.
            handshake: this side's handshake.
            version: the version of the messages; the other side must have the same.
        """
        self._loop = loop
        self._clock = clock
        self._stream = stream
        self._version = version
        self._handshake = handshake
        self._keys: tuple[Sealer, Opener] | None = None
        self._decoder = FrameDecoder(LONGEST_GREETING)
        self._early: list[bytes] = []  # messages that wait for the handshake
        self._early_size = 0
        self._over = False  # `close` or `on_end` was called
        self._connected = False  # the socket is connected
        self._challenged = False  # the other side has sent its challenge
        self._deadline = float("inf")
        self._deadline_seconds = 0.0  # seconds from the moment at which the deadline was set to the deadline
        self.peer = stream.peer
        self.ready = False
        self.on_ready: Callable[[], None] = _ignore
        self.on_message: Callable[[dict[str, Any]], None] = _ignore
        self.on_end: Callable[[str], None] = _ignore
        self.on_proven: Callable[[], None] = _ignore
        """set by the listener only"""
        stream.on_open = self._opened
        stream.on_data = self._on_data
        stream.on_end = self._stream_ended

    # --- for the owner ------------------------------------------------------------------------------------

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, or queue it until it can be sent, also before `ready`.

        The connection ends if more than MOST_QUEUED bytes wait.

        Raises:
            ValueError: the message is too long for any peer, or has a number that is not finite.
            TypeError: the message is no dict, or has something in it that JSON cannot hold.
        """
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
        if (queued := self.queued) > MOST_QUEUED:
            self._over = True
            self.ready = False
            why = f"{queued} bytes wait for {self.peer}, {MOST_QUEUED} may; the connection is ended"
            self._stream.close()
            # Under the name of the deadline's timer: this one takes that one's place, and `close` cancels it.
            self._loop.call_at(self._clock(), (self, "deadline"), lambda: self.on_end(why))

    @property
    def queued(self) -> int:
        """Bytes that wait to be sent."""
        return self._stream.queued + self._early_size

    def close(self) -> None:
        """End the connection without a call of `on_end`. Queued messages are dropped."""
        self._over = True
        self.ready = False
        self._early.clear()
        self._loop.cancel((self, "deadline"))
        self._stream.close()

    def end_by(self, deadline: float) -> None:
        """End the connection at `deadline`, in monotonic seconds, unless ready by then. The earliest one counts."""
        if deadline < self._deadline:
            self._deadline = deadline
            self._deadline_seconds = deadline - self._clock()
            self._loop.call_at(deadline, (self, "deadline"), self._on_timeout)

    def forget_handlers(self) -> None:
        """Remove the handlers, so that a new owner can set its own."""
        self.on_ready = self.on_message = self.on_end = self.on_proven = _ignore

    # --- the handshake ------------------------------------------------------------------------------------

    def _opened(self) -> None:
        self._connected = True
        self.end_by(self._clock() + HANDSHAKE_SECONDS)
        self._stream.send(encode_frame(self._handshake.challenge))

    def _shake_hands(self, content: bytes) -> None:
        answer = self._handshake.receive(content)
        self._challenged = True
        if answer is not None:
            self._stream.send(encode_frame(answer))
        if self._handshake.proven:
            self._keys = self._handshake.derive_keys()
            version = json.dumps({"protocol": self._version}).encode()
            self._stream.send(self._keys[0].seal(version))
            self.on_proven()

    def _compare_versions(self, message: dict[str, Any]) -> None:
        other_version = read_other_version(message, self._version)  # empty if it is the same
        if other_version:
            self._end(f"cannot talk to {self.peer}: it runs ftlaunch protocol {other_version}, this is {self._version}")
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

    def _on_data(self, data: bytes) -> None:
        self._decoder.add(data)
        try:
            while not self._over and (content := self._decoder.next_frame()) is not None:
                self._handle_frame(content)
        except FrameError as error:
            self._end(f"cannot talk to {self.peer}: {self._stranger()}{error}")

    def _stranger(self) -> str:
        """Return the beginning of a reason for a listener that does not speak our handshake; empty for others."""
        return f"{NO_FTLAUNCH}: " if self._handshake.role is Role.CLIENT and not self._challenged else ""

    def _handle_frame(self, content: bytes) -> None:
        if self._keys is None:
            self._shake_hands(content)
            return
        message = _parse_message(self._keys[1].open(content))
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
            cause = self._stranger() or f"{BROKEN_OFF} (does it have a different token?): "
            self._end(f"cannot talk to {self.peer}: {cause}{why}")
        else:
            self._end(f"cannot connect to {self.peer}: {why}")

    def _on_timeout(self) -> None:
        if self._connected and self._stranger():
            silence = f"it has said nothing for {self._deadline_seconds:.1f} s"
            self._end(f"cannot talk to {self.peer}: {silence}: another program listens there, or a head is frozen")
        elif self._connected:
            self._end(
                f"cannot talk to {self.peer}: it did not finish the handshake within {self._deadline_seconds:.1f} s"
            )
        else:
            self._end(f"cannot connect to {self.peer} within {self._deadline_seconds:.1f} s")

    def _end(self, why: str) -> None:
        if not self._over:
            self.close()
            self.on_end(why)


def _parse_message(content: bytes) -> dict[str, Any]:
    """Return the message in the content of a frame. Raises FrameError if there is none."""
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
    """Begin to connect to a listener, and return at once.

    `on_ready` or `on_end` of the connection is called later from the loop. Even a failure to make the socket is
    reported by `on_end`.

    Args:
        loop: the event loop.
        clock: monotonic seconds.
        address: a numeric address.
        port: the port.
        token: the secret that both sides must know.
        deadline: monotonic seconds at which the connection ends unless it is ready.
        version: the version of the messages; the other side must have the same.
        silence_seconds: seconds without an answer of the other machine's kernel after which the connection ends.

    Raises:
        ValueError: `address` is a name.
    """
    peer = format_endpoint(address, port)
    problem = ""
    connection = None
    target: tuple[object, ...] = ()
    try:
        family, target = resolve(address, port)
        connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError as error:
        problem = error.strerror or str(error)
    stream = Stream(loop=loop, clock=clock, connection=connection, peer=peer, silence_seconds=silence_seconds)
    handshake = Handshake(Role.CLIENT, token, secrets.token_bytes(NONCE))
    made = Connection(loop=loop, clock=clock, stream=stream, handshake=handshake, version=version)
    made.end_by(deadline)
    if problem:
        stream.fail_later(problem)
    else:
        stream.connect(target)
    return made

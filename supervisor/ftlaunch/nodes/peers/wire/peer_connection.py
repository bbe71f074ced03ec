"""A blocking connection to another copier: sealed JSON messages, with plain bytes of files between them.

The messages are sealed as those of `ftlaunch.nodes.channel`. Bytes between messages are not; digests in the messages
verify them.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ftlaunch.nodes.channel import handshake
from ftlaunch.nodes.channel.framing import (
    LONGEST_GREETING,
    LONGEST_MESSAGE,
    OVERHEAD,
    PREFIX,
    FrameError,
    Opener,
    Sealer,
    decode_length,
    encode_frame,
)
from ftlaunch.nodes.channel.handshake import NONCE, Handshake, Role
from ftlaunch.nodes.channel.stream import format_endpoint, resolve, watch_peer
from ftlaunch_contract.files import untrusted_json

PROTOCOL = "3"
"""the version of the copiers' messages; both ends must have the same"""
STALL_SECONDS = 10.0
"""seconds within which a connection in use must move a byte"""
_GREETING_SECONDS = 5.0  # for both sides to prove that they know the token
_CONNECT_SECONDS = 3.0
_SO_MAX_PACING_RATE = 47  # the module `socket` has no name for it

OpenRange = tuple[int, int, int]
"""descriptor, begin and end in bytes"""


class PeerError(Exception):
    """Another copier cannot do what it was asked. The message is a clause that follows a colon."""


class PeerConnection:
    """A connection whose other end knows the token.

    Each call may raise OSError if the connection has failed, and FrameError if the other side has sent something
    malformed. For one thread, but for `shut`.
    """

    def __init__(self, connection: socket.socket, sealer: Sealer, opener: Opener) -> None:
        """Take a connected socket after the handshake, with the sealer and the opener of its messages."""
        self._socket = connection
        self._sealer = sealer
        self._opener = opener
        self.bytes = 0
        """bytes that were sent and received between messages"""

    # --- messages ------------------------------------------------------------------------------------------

    def send(self, message: dict[str, Any], content: bytes = b"") -> None:
        """Send a message, followed by the bytes that the message announces."""
        try:
            frame = self._sealer.seal(json.dumps(message, separators=(",", ":")).encode())
        except ValueError as error:
            raise FrameError(str(error)) from error
        self._socket.settimeout(STALL_SECONDS)
        self._socket.sendall(frame + content if content else frame)
        self.bytes += len(content)

    def receive(self, seconds: float | None = STALL_SECONDS) -> dict[str, Any]:
        """Return the next message. seconds: the time within which it must begin; None for no limit."""
        self._socket.settimeout(seconds)
        prefix = self._exactly(PREFIX)
        self._socket.settimeout(STALL_SECONDS)
        content = bytes(self._exactly(decode_length(prefix, LONGEST_MESSAGE + OVERHEAD)))
        try:
            return untrusted_json.mapping(untrusted_json.parse(self._opener.open(content)), "it")
        except ValueError as error:
            raise FrameError(f"it sent what is no message ({error})") from error

    def _exactly(self, count: int) -> bytearray:
        content = bytearray(count)
        self.receive_into(memoryview(content))
        return content

    # --- bytes between messages ----------------------------------------------------------------------------

    def receive_into(self, view: memoryview) -> None:
        """Receive bytes until `view` is full."""
        while view:
            got = self._socket.recv_into(view)
            if not got:
                raise ConnectionResetError(0, "it was closed by the other side")
            view = view[got:]

    def receive_content(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        content = bytes(self._exactly(count))
        self.bytes += count
        return content

    def receive_into_pipe(self, pipe: int, most: int) -> int:
        """Move received bytes into an empty pipe, at least one and at most `most`. Return their number."""
        while True:
            try:
                got = os.splice(self._socket.fileno(), pipe, most)
            except BlockingIOError:
                self._wait(select.POLLIN, "sent")
                continue
            if not got:
                raise ConnectionResetError(0, "it was closed by the other side")
            self.bytes += got
            return got

    @contextmanager
    def together(self) -> Iterator[None]:
        """Send everything within this context in as few packets as possible."""
        self._cork(True)
        yield
        self._cork(False)

    def send_range(self, fd: int, begin: int, end: int) -> None:
        """Send bytes of a file without copying them. Raises PeerError if the file is too short."""
        self._socket.settimeout(STALL_SECONDS)
        self.bytes += end - begin
        while begin < end:
            try:
                count = os.sendfile(self._socket.fileno(), fd, begin, end - begin)
            except BlockingIOError:
                self._wait(select.POLLOUT, "took")
                continue
            if not count:
                raise PeerError("a file is shorter than its header says")
            begin += count

    def _cork(self, on: bool) -> None:
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, int(on))

    def _wait(self, event: int, does: str) -> None:
        poll = select.poll()
        poll.register(self._socket.fileno(), event)
        if not poll.poll(STALL_SECONDS * 1000):
            raise TimeoutError(0, f"it {does} nothing for {STALL_SECONDS:.0f} s")

    @property
    def ended(self) -> bool:
        """Whether the other side has ended the connection. Valid only between an answer and the next request."""
        try:
            self._socket.settimeout(0)
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def shut(self) -> None:
        """End the connection from another thread, so that a call that waits for the other side ends with an error."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the connection has ended already

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


# --- the beginning ---------------------------------------------------------------------------------------------


def connect(address: str, port: int, token: bytes, rate: int | None = None) -> PeerConnection:
    """Connect to a copier.

    Args:
        address: its numeric address.
        port: its port.
        token: the secret that both sides must know.
        rate: bytes a second that are sent at most, or None.

    Raises:
        OSError: there is no connection. FrameError: the other side is no copier, or does not know the token.
        ValueError: the address is a name.
    """
    family, target = resolve(address, port)
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(_CONNECT_SECONDS)
        connection.connect(target)
        watch_peer(connection)
        if rate:
            connection.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("Q", rate))
        return greet(connection, Role.CLIENT, token)
    except BaseException:
        connection.close()
        raise


def greet(connection: socket.socket, role: Role, token: bytes) -> PeerConnection:
    """Shake hands and compare versions. Raises OSError, or FrameError if the other side does not know the token."""
    deadline = time.monotonic() + _GREETING_SECONDS
    connection.settimeout(_GREETING_SECONDS)
    shake = Handshake(role, token, os.urandom(NONCE))
    connection.sendall(encode_frame(shake.challenge))
    while not shake.proven:
        if answer := shake.receive(_greeting(connection, deadline)):
            connection.sendall(encode_frame(answer))
    sealer, opener = shake.derive_keys()
    peer = PeerConnection(connection, sealer, opener)
    peer.send({"protocol": PROTOCOL})
    try:
        theirs = handshake.read_other_version(peer.receive(_GREETING_SECONDS), PROTOCOL)
    except ValueError as error:
        raise FrameError(str(error)) from error
    if theirs:
        raise FrameError(f"it speaks version {theirs} of the copiers' messages, this side speaks {PROTOCOL}")
    return peer


def _greeting(connection: socket.socket, deadline: float) -> bytes:
    """Return the content of the next frame of the handshake, received by a deadline in monotonic seconds."""

    def received(count: int) -> bytes:
        content = b""
        while len(content) < count:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            got = connection.recv(count - len(content))
            if not got:
                raise FrameError("it ended the connection before it proved that it knows the token")
            content += got
        return content

    return received(decode_length(received(PREFIX), LONGEST_GREETING))


def peer_name(connection: socket.socket) -> str:
    """Return the address and port of the other side, for a sentence."""
    try:
        address, port = connection.getpeername()[:2]
    except OSError:
        return "a stranger"
    return format_endpoint(address, port)


def why(error: Exception) -> str:
    """Return the reason of a failure, as a clause that follows a colon."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)

"""Pieces of files on a connection, each verified by a digest that follows it in a sealed message.

The digest comes last, so that a stretch of the piece is digested while the one before it is on its way.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Sequence
from contextlib import suppress

import xxhash

from ftlaunch.nodes.peers.plan import checked
from ftlaunch.nodes.peers.wire.peer_connection import OpenRange, PeerConnection, PeerError

TRIES = 3
"""times that a piece is sent, until its digest is right"""
_BUFFER = 256 << 10  # bytes: they stay in the processor's cache from one step of the way to the next
_STRETCH = 1 << 20  # bytes that are sent before they are digested
_SMALL = 64 << 10  # bytes of a piece that is copied instead
_PIPE = 1 << 20  # bytes; the most that the kernel gives to a user who is not root


def send_piece(connection: PeerConnection, message: dict[str, object], ranges: Sequence[OpenRange]) -> None:
    """Send `message`, the piece, and its digest. Raises OSError, PeerError."""
    digest = xxhash.xxh3_128()
    with connection.together():
        if sum(end - begin for _, begin, end in ranges) <= _SMALL:
            content = b"".join(_read(fd, begin, end) for fd, begin, end in ranges)
            digest.update(content)
            connection.send(message, content)
        else:
            connection.send(message)
            _send_digesting(connection, ranges, digest)
        connection.send({"digest": digest.hexdigest()})


def _read(fd: int, begin: int, end: int) -> bytes:
    content = os.pread(fd, end - begin, begin)
    if len(content) < end - begin:
        raise PeerError("a file is shorter than its header says")
    return content


def _send_digesting(connection: PeerConnection, ranges: Sequence[OpenRange], digest: xxhash.xxh3_128) -> None:
    with memoryview(bytearray(_BUFFER)) as buffer:
        for fd, first, end in ranges:
            for begin in range(first, end, _STRETCH):
                stop = min(begin + _STRETCH, end)
                connection.send_range(fd, begin, stop)
                _digest(fd, begin, stop, buffer, digest)


def _digest(fd: int, begin: int, end: int, buffer: memoryview, digest: xxhash.xxh3_128) -> None:
    while begin < end:
        count = os.preadv(fd, [buffer[: end - begin]], begin)
        if not count:
            raise PeerError("a file is shorter than its header says")
        digest.update(buffer[:count])
        begin += count


class PieceReceiver:
    """Receives pieces, one after another, into files whose memory is there already.

    Bytes go from the socket into the file by splice(2), which copies them once, and are digested as they lie there.
    """

    def __init__(self, connection: PeerConnection) -> None:
        """Raises OSError."""
        self._connection = connection
        self._buffer = memoryview(bytearray(_BUFFER))
        self._out, self._in = os.pipe()
        weakref.finalize(self, _close, self._out, self._in)
        with suppress(OSError):  # the user has many pipes: it stays as small as it is
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, _PIPE)

    def receive(self, ranges: Sequence[OpenRange]) -> bool:
        """Receive a piece and write it; whether its digest is right. Raises OSError, FrameError, ValueError."""
        found = xxhash.xxh3_128()
        for fd, first, end in ranges:
            begin = first
            while begin < end:
                stop = begin + self._connection.receive_into_pipe(self._in, min(end - begin, _PIPE))
                self._write(fd, begin, stop)
                _digest(fd, begin, stop, self._buffer, found)
                begin = stop
        return found.hexdigest() == checked.digest_of(self._connection.receive().get("digest"), "`digest`")

    def _write(self, fd: int, begin: int, end: int) -> None:
        while begin < end:
            begin += os.splice(self._out, fd, end - begin, offset_dst=begin)


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)

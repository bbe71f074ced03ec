"""Sends and receives pieces of files, each verified by a digest that follows the piece in a sealed message.

The digest comes last, so that one stretch of the piece is digested while the stretch before is on its way.
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
"""how often a piece is sent at most until its digest is right"""
_BUFFER = 256 << 10  # bytes, few enough to stay in the processor's cache while they are digested
_STRETCH = 1 << 20  # bytes that are sent before they are digested
_SMALL = 64 << 10  # bytes of a piece up to which it is read into memory instead
_PIPE = 1 << 20  # bytes; the most that the kernel gives to a user who is not root


def send_piece(connection: PeerConnection, message: dict[str, object], ranges: Sequence[OpenRange]) -> None:
    """Send a message, the bytes of a piece, and their digest.

    Raises:
        OSError: the connection has failed.
        PeerError: a file is shorter than its header says.
    """
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
                _digest(fd=fd, begin=begin, end=stop, buffer=buffer, digest=digest)


def _digest(fd: int, begin: int, end: int, buffer: memoryview, digest: xxhash.xxh3_128) -> None:
    while begin < end:
        count = os.preadv(fd, [buffer[: end - begin]], begin)
        if not count:
            raise PeerError("a file is shorter than its header says")
        digest.update(buffer[:count])
        begin += count


class PieceReceiver:
    """Receives pieces, one after another, into files whose memory is already reserved.

    Bytes go from the socket into the file by splice(2), which copies them once, and are digested in the file.
    """

    def __init__(self, connection: PeerConnection) -> None:
        """Create the pipe for splice(2). Raises OSError if there is no descriptor."""
        self._connection = connection
        self._buffer = memoryview(bytearray(_BUFFER))
        self._out, self._in = os.pipe()
        weakref.finalize(self, _close, self._out, self._in)
        with suppress(OSError):  # the user has too many pipes: this one stays small
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, _PIPE)

    def receive(self, ranges: Sequence[OpenRange]) -> bool:
        """Receive a piece into files.

        Returns:
            Whether its digest is right.

        Raises:
            OSError: the connection has failed, or a file cannot be written. FrameError and ValueError: the digest is
                malformed.
        """
        found = xxhash.xxh3_128()
        for fd, first, end in ranges:
            begin = first
            while begin < end:
                stop = begin + self._connection.receive_into_pipe(self._in, min(end - begin, _PIPE))
                self._write(fd, begin, stop)
                _digest(fd=fd, begin=begin, end=stop, buffer=self._buffer, digest=found)
                begin = stop
        return found.hexdigest() == checked.digest_of(self._connection.receive().get("digest"), "`digest`")

    def _write(self, fd: int, begin: int, end: int) -> None:
        while begin < end:
            begin += os.splice(self._out, fd, end - begin, offset_dst=begin)


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)

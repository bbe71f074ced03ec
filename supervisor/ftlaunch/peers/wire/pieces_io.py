"""Pieces of files on a connection, each verified by a digest that came in a sealed message."""

from __future__ import annotations

import os
from collections.abc import Sequence

import xxhash

from ftlaunch.peers.wire.peer_connection import OpenRange, PeerConnection, PeerError

TRIES = 3
"""times that a piece is sent, until its digest is right"""
_BUFFER = 1 << 20
_SMALL = 64 << 10  # bytes of a piece that is copied instead


def send_piece(connection: PeerConnection, message: dict[str, object], ranges: Sequence[OpenRange]) -> None:
    """Send `message` with the digest of the piece, then the piece. Raises OSError, PeerError."""
    if sum(end - begin for _, begin, end in ranges) <= _SMALL:
        content = b"".join(_read(fd, begin, end) for fd, begin, end in ranges)
        connection.send({**message, "digest": xxhash.xxh3_128_hexdigest(content)}, content)
        return
    connection.send({**message, "digest": _digest(ranges)})
    connection.send_ranges(ranges)


def _read(fd: int, begin: int, end: int) -> bytes:
    content = os.pread(fd, end - begin, begin)
    if len(content) < end - begin:
        raise PeerError("a file is shorter than its header says")
    return content


def _digest(ranges: Sequence[OpenRange]) -> str:
    digest = xxhash.xxh3_128()
    with memoryview(bytearray(_BUFFER)) as buffer:
        for fd, first, end in ranges:
            begin = first
            while begin < end:
                count = os.preadv(fd, [buffer[: end - begin]], begin)
                if not count:
                    raise PeerError("a file is shorter than its header says")
                digest.update(buffer[:count])
                begin += count
    return digest.hexdigest()


class PieceReceiver:
    """Receives pieces, one after another, into files whose memory is there already."""

    def __init__(self, connection: PeerConnection) -> None:
        self._connection = connection
        self._buffer = memoryview(bytearray(_BUFFER))

    def receive(self, ranges: Sequence[OpenRange], digest: str) -> bool:
        """Receive a piece and write it; whether it has that digest. Raises OSError."""
        found = xxhash.xxh3_128()
        left = [(fd, begin, end) for fd, begin, end in ranges if begin < end]
        amount = sum(end - begin for _, begin, end in left)
        while amount:
            count = self._connection.receive_some(self._buffer[:amount])
            amount -= count
            found.update(self._buffer[:count])
            _scatter(self._buffer[:count], left)
        return found.hexdigest() == digest


def _scatter(content: memoryview, ranges: list[OpenRange]) -> None:
    """Write what was received to the first of the ranges, and take it off them."""
    while content:
        fd, begin, end = ranges[0]
        count = os.pwrite(fd, content[: end - begin], begin)
        content = content[count:]
        if begin + count == end:
            del ranges[0]
        else:
            ranges[0] = fd, begin + count, end

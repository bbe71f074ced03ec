"""Checksums over blocks of files, so that one large file is read by several threads. XXH3 of 128 bits, by xxhash.

A file's digest is a list, one entry per 64 MiB; of a file of one block that is what `xxh128sum` prints, and of a
larger one what `split -b 64M --filter=xxh128sum FILE` prints.
"""

from __future__ import annotations

import os

import xxhash

NAME = "xxh3_128"  # in metadata.json
BLOCK = 64 << 20
_READ = 1 << 20  # bytes: few enough to be hashed from the processor's cache


def blocks(size: int) -> list[tuple[int, int]]:
    """(begin, end) of every block of a file of `size` bytes; an empty file has one, empty."""
    return [(begin, min(begin + BLOCK, size)) for begin in range(0, max(size, 1), BLOCK)]


def of_bytes(data: bytes) -> list[str]:
    """Digests of a file's content that is in memory."""
    return [xxhash.xxh3_128(data[begin:end]).hexdigest() for begin, end in blocks(len(data))]


def of_whole(data: bytes) -> str:
    """One digest over all bytes."""
    return xxhash.xxh3_128(data).hexdigest()


def of_block(fd: int, begin: int, end: int) -> str:
    """Digest of a file's bytes from `begin` to `end`. Raises OSError, or EOFError where it ends before."""
    digest = xxhash.xxh3_128()
    with memoryview(bytearray(min(_READ, end - begin))) as buffer:
        while begin < end:
            count = os.preadv(fd, [buffer[: end - begin]], begin)
            if not count:
                raise EOFError
            digest.update(buffer[:count])
            begin += count
    return digest.hexdigest()


class Running:
    """Digests of data that comes in pieces."""

    def __init__(self) -> None:
        self._done: list[str] = []
        self._block, self._room = xxhash.xxh3_128(), BLOCK

    def update(self, piece: memoryview) -> None:
        """The next bytes."""
        while len(piece) > self._room:
            head, piece = piece[: self._room], piece[self._room :]
            self._block.update(head)
            self._done.append(self._block.hexdigest())
            self._block, self._room = xxhash.xxh3_128(), BLOCK
        self._block.update(piece)
        self._room -= len(piece)

    def finish(self) -> list[str]:
        """The digests of all blocks."""
        return [*self._done, self._block.hexdigest()]

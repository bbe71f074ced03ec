"""Checksums over blocks of 64 MiB, so that several threads can read one large file. XXH3 with 128 bits, from xxhash.

The digest of a file is a list with one hexadecimal entry per block. For a file of one block the entry is what
`xxh128sum` prints; for a larger file the entries are what `split -b 64M --filter=xxh128sum FILE` prints.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import xxhash

NAME = "xxh3_128"  # the key of a file's digests in metadata.json
BLOCK = 64 << 20  # bytes
_READ = 1 << 20  # bytes: few enough to be hashed from the processor's cache


def blocks(size: int) -> list[tuple[int, int]]:
    """Return (begin, end) in bytes of every block of a file of `size` bytes. An empty file has one empty block."""
    return [(begin, min(begin + BLOCK, size)) for begin in range(0, max(size, 1), BLOCK)]


def of_bytes(data: bytes) -> list[str]:
    """Return the digests of a file's content that is in memory, one per block."""
    return [xxhash.xxh3_128(data[begin:end]).hexdigest() for begin, end in blocks(len(data))]


def of_whole(data: bytes) -> str:
    """Return one digest over all bytes, whatever their number."""
    return xxhash.xxh3_128(data).hexdigest()


def of_block(fd: int, begin: int, end: int) -> str:
    """Return the digest of a file's bytes from `begin` to `end`.

    Raises:
        EOFError: the file ends before `end`.
        OSError: the file cannot be read.
    """
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
    """Computes the digests of data that arrives in pieces of any size."""

    def __init__(self) -> None:
        self._done: list[str] = []
        self._begin_block()

    def _begin_block(self) -> None:
        self._block = xxhash.xxh3_128()
        self._room = BLOCK  # bytes until this block is full

    def update(self, piece: memoryview) -> None:
        """Add the next bytes."""
        while len(piece) > self._room:
            self._block.update(piece[: self._room])
            piece = piece[self._room :]
            self._done.append(self._block.hexdigest())
            self._begin_block()
        self._block.update(piece)
        self._room -= len(piece)

    def finish(self) -> list[str]:
        """Return the digests of all blocks."""
        return [*self._done, self._block.hexdigest()]


def of_blocks(digests: Iterable[str]) -> str:
    """Return one checksum over the checksums of a file's blocks."""
    return of_whole("".join(digests).encode())

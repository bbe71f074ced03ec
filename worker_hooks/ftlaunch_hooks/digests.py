"""SHA-256 over blocks of files, so that one large file is hashed by several threads. Standard library only.

A file's digest is a list, one entry per 64 MiB; of a file of one block that is what `sha256sum` prints, and of a
larger one what `split -b 64M --filter=sha256sum FILE` prints.
"""

from __future__ import annotations

import hashlib
import os

BLOCK = 64 << 20
_READ = 1 << 20  # bytes: what is hashed is still in the processor's cache


def blocks(size: int) -> list[tuple[int, int]]:
    """(begin, end) of every block of a file of `size` bytes; an empty file has one, empty."""
    return [(begin, min(begin + BLOCK, size)) for begin in range(0, max(size, 1), BLOCK)]


def of_bytes(data: bytes) -> list[str]:
    """Digests of what a file holds that is in memory."""
    return [hashlib.sha256(data[begin:end]).hexdigest() for begin, end in blocks(len(data))]


def of_block(fd: int, begin: int, end: int) -> str:
    """Digest of a file's bytes from `begin` to `end`. Raises OSError, or EOFError where it ends before."""
    digest = hashlib.sha256()
    with memoryview(bytearray(min(_READ, end - begin))) as buffer:
        while begin < end:
            count = os.preadv(fd, [buffer[: end - begin]], begin)
            if not count:
                raise EOFError
            digest.update(buffer[:count])
            begin += count
    return digest.hexdigest()

"""Memory for copies: it is reserved before anything is written, and a part of it is left to others."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ftlaunch_contract.files.memory_pools import MemoryPool, pools

_UNLIMITED = 1 << 60
_AT_ONCE = 256 << 20  # bytes that are reserved between two signs of life
_MIB = 1 << 20


def check_room(directory: Path, needed: int) -> None:
    """Raises OSError with the numbers where there is no room for so many bytes."""
    disk = os.statvfs(directory)
    left = room_for_copies(disk.f_bavail, disk.f_blocks, disk.f_frsize, pools())
    if needed > left:
        why = f"no room: {-(-needed // _MIB)} MiB are needed, {left // _MIB} MiB may be taken in {directory}"
        raise OSError(errno.ENOSPC, why)


def room_for_copies(free: int, blocks: int, block: int, found: Sequence[MemoryPool]) -> int:
    """Bytes that copies may take of a file system of `blocks` blocks and of the memory there is. Pure.

    A tenth of the file system is left to others, and a twentieth of the machine's and of each cgroup's memory.
    """
    room = _UNLIMITED if blocks == 0 else max((free - blocks // 10) * block, 0)
    return min(room, *(max(pool.available - pool.limit // 20, 0) for pool in found), _UNLIMITED)


def reserve(fd: int, ranges: Iterable[tuple[int, int]], alive: Callable[[], None]) -> None:
    """Reserve the memory of parts of a file: ENOSPC here instead of SIGBUS later. Raises OSError.

    alive: is called now and then, and may raise what ends this.
    """
    for first, end in ranges:
        begin = first
        while begin < end:
            count = min(end - begin, _AT_ONCE)
            os.posix_fallocate(fd, begin, count)
            begin += count
            if begin < end:
                alive()

"""Memory for copies: reserved before anything is written, so that a part of the machine's memory is left to others."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ftlaunch_contract.files.memory_pools import MemoryPool, pools

_UNLIMITED = 1 << 60
_AT_ONCE = 256 << 20  # bytes that are reserved between two calls of `alive`
_MIB = 1 << 20


def check_room(directory: Path, needed: int) -> None:
    """Check that there is room for `needed` bytes in the file system of a directory.

    Raises:
        OSError: there is no room. The text names both numbers.
    """
    disk = os.statvfs(directory)
    left = room_for_copies(free=disk.f_bavail, blocks=disk.f_blocks, block=disk.f_frsize, found=pools())
    if needed > left:
        why = f"no room: {-(-needed // _MIB)} MiB are needed, {left // _MIB} MiB may be taken in {directory}"
        raise OSError(errno.ENOSPC, why)


def room_for_copies(free: int, blocks: int, block: int, found: Sequence[MemoryPool]) -> int:
    """Return the bytes that copies may take. Pure.

    A tenth of the file system is left to others, and a twentieth of the machine's and of each cgroup's memory.

    Args:
        free: free blocks of the file system.
        blocks: all its blocks; 0 if it has no limit.
        block: bytes of a block.
        found: the memory of the machine and of the cgroups.
    """
    room = _UNLIMITED if blocks == 0 else max((free - blocks // 10) * block, 0)
    return min(room, *(max(pool.available - pool.limit // 20, 0) for pool in found), _UNLIMITED)


def reserve(fd: int, ranges: Iterable[tuple[int, int]], alive: Callable[[], None]) -> None:
    """Reserve the memory of parts of a file, so that a shortage is ENOSPC here and not SIGBUS later.

    Args:
        fd: the descriptor of the file.
        ranges: begin and end of each part, in bytes.
        alive: called now and then; what it raises ends this call.

    Raises:
        OSError: there is no memory left.
    """
    for first, end in ranges:
        begin = first
        while begin < end:
            count = min(end - begin, _AT_ONCE)
            os.posix_fallocate(fd, begin, count)
            begin += count
            if begin < end:
                alive()

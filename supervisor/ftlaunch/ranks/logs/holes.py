"""Giving back what the middle of a file takes on the disk, while others append to it: no offset changes.

A hole is punched (fallocate(2)): ext4, XFS, Btrfs, tmpfs, and NFS from version 4.2 on can do it. What is appended
meanwhile lies behind the hole, and is never touched.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable
from pathlib import Path

HEAD = 1 << 20
"""bytes at the beginning of a log that are kept: versions, settings, the first steps"""
BEFORE_END = 64 << 10
"""bytes that are kept before each end of a process: what a diagnosis reads"""
_BLOCK = 1 << 20  # the hole before the newest bytes ends at multiples of it: all file systems can free such
_GRAIN = 64 << 10  # the same around the end of a process, of which a log may have many
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)


def to_punch(length: int, newest: int, done: int, ends: Iterable[int] = ()) -> list[tuple[int, int]]:
    """Where holes begin and how long each is, in a file of so many bytes; none while they are not worth it. Pure.

    newest: bytes at the end that are kept. done: up to where holes were made before, or 0. ends: where a process ended
    that wrote into the file, and another one went on: BEFORE_END bytes are kept before each, whatever it ended of.
    """
    begin, end = max(HEAD, done), (length - newest) // _BLOCK * _BLOCK
    found = []
    for last in sorted(ends):
        kept_from, kept_to = (last - BEFORE_END) // _GRAIN * _GRAIN, -(-last // _GRAIN) * _GRAIN
        if begin < min(kept_from, end):
            found.append((begin, min(kept_from, end) - begin))
        begin = max(begin, kept_to)
    return [*found, (begin, end - begin)] if begin < end else found


def punch(fd: int, begin: int, length: int) -> None:
    """Raises OSError: EOPNOTSUPP where the file system cannot."""
    offsets = ctypes.c_int64(begin), ctypes.c_int64(length)
    if _libc.fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, *offsets) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def why_not(folder: Path) -> str:
    """Why the logs in a folder cannot be kept short, in a few words; empty where they can. Raises OSError."""
    import tempfile  # noqa: PLC0415 - only where it is asked for: it costs memory

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(1 << 16))
        file.flush()
        try:
            punch(file.fileno(), 0, 1 << 16)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                return f"the file system of {folder} cannot give back a part of a file"
            raise
    return ""

"""Frees the disk space of the middle of a file while others append to the file. No offset changes.

The space is freed by punching holes (fallocate(2)), which ext4, XFS, Btrfs, tmpfs, and NFS from version 4.2 on can do.
Bytes that are appended meanwhile lie behind the hole, and are never touched.
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
"""bytes that are kept before each end of a process, because a diagnosis reads them"""
_BLOCK = 1 << 20  # bytes; the last hole ends at a multiple of this, which all file systems can free
_GRAIN = 64 << 10  # bytes; holes around the end of a process, of which a log may have many, end at multiples of this
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
_PUNCH_HOLE = 2  # FALLOC_FL_PUNCH_HOLE
_libc = ctypes.CDLL(None, use_errno=True)


def to_punch(length: int, newest: int, done: int, ends: Iterable[int] = ()) -> list[tuple[int, int]]:
    """Return the holes to punch into a file, as pairs of offset and length in bytes. Pure.

    Args:
        length: bytes of the file.
        newest: bytes that are kept at the end of the file.
        done: offset up to which holes were punched before; 0 if there are none.
        ends: offsets at which a process that wrote to the file ended and another went on. BEFORE_END bytes are kept
            before each of them, whatever the process ended of.

    Returns:
        The holes in ascending order; none if there is too little to free.
    """
    begin = max(HEAD, done)
    end = (length - newest) // _BLOCK * _BLOCK
    holes = []
    for last in sorted(ends):
        kept_from = (last - BEFORE_END) // _GRAIN * _GRAIN
        kept_to = -(-last // _GRAIN) * _GRAIN
        if begin < min(kept_from, end):
            holes.append((begin, min(kept_from, end) - begin))
        begin = max(begin, kept_to)
    if begin < end:
        holes.append((begin, end - begin))
    return holes


def punch(fd: int, begin: int, length: int) -> None:
    """Free `length` bytes of a file from offset `begin` on.

    Raises:
        OSError: with EOPNOTSUPP if the file system cannot punch holes.
    """
    if _libc.fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(begin), ctypes.c_int64(length)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def why_not(folder: Path) -> str:
    """Say in a few words why the logs in a folder cannot be kept short; empty if they can. Raises OSError.

    The folder is created if there is none, and a hole is punched into a temporary file in it.
    """
    import tempfile  # noqa: PLC0415 - costs memory, and few jobs limit their logs

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

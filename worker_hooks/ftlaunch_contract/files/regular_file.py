"""Opens files for reading in directories that others can write to. Standard library only.

A FIFO in the place of a file would keep a reader waiting until somebody writes to it, perhaps forever. A device could
have side effects. A file of a gigabyte where a line is expected would fill the memory.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

SMALL = 1 << 20
"""bytes; more than any file of settings, of a seed or of a plan has"""
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def kind_of(mode: int) -> str:
    """Return in words what a file with this `st_mode` is; empty for a regular file."""
    if stat.S_ISREG(mode):
        return ""
    return "a directory" if stat.S_ISDIR(mode) else _KINDS.get(stat.S_IFMT(mode), "no file")


def file_size(path: Path) -> int:
    """Return the bytes of a file; 0 if there is no file. Raises OSError if they cannot be found out."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading, without ever waiting for another process.

    Raises:
        IsADirectoryError: the path is a directory.
        OSError: EINVAL, with the kind in words, for a FIFO, a socket or a device; any other error of open(2).
    """
    try:
        fd = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise OSError(errno.EINVAL, "it is no regular file (a socket)", str(path)) from error
        raise
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(fd, "rb")
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, f"it is no regular file ({kind_of(mode)})", str(path))


def read_regular(path: Path, most: int = SMALL) -> bytes:
    """Return the content of a regular file of at most `most` bytes.

    Raises:
        OSError: what `open_regular` raises, and EFBIG for a longer file.
    """
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes, which no such file has", str(path))
    return content

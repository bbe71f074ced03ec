"""Writes files so that a crash at any system call leaves either the old content or the new. Standard library only.

Supervisor, saver and ranks call these functions; each blocks until the kernel has answered.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of `data`: a single `os.write` may write less. Raises OSError."""
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(fd, view) :]


def fsync_dir(path: Path) -> None:
    """Make the entries of a directory durable. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durable(path: Path, data: bytes) -> None:
    """Write a new file and fsync it; the name is durable only after `fsync_dir` of the directory. Raises OSError.

    An fsync error is final: the file must be thrown away, not synced again (a second fsync may report
    success for pages the kernel has dropped).
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_durable(path: Path, data: bytes) -> None:
    """Replace a file's content: temporary file, fsync, rename, fsync of the directory. Raises OSError."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        write_durable(temporary, data)
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


def link_once(written: Path, name: Path) -> None:
    """Publish a complete file under the name that others look for; only the first of several callers succeeds.

    Raises:
        FileExistsError: the name is taken.
        OSError: the link cannot be made; the message says what to do where the file system has no hard links.
    """
    try:
        os.link(written, name, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        why = f"its file system has no hard links (link(2): {error.strerror}); choose a run dir on one that has them"
        raise OSError(error.errno, why, str(name)) from None

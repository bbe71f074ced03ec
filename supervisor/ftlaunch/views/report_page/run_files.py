"""Opens untrusted files of a run dir, so that no link leads elsewhere, and no pipe or device blocks the reader."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from ftlaunch.history.journal import EVENTS

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
Made = TypeVar("Made")
_MOST_MADE = 1000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def open_journal_without_links(run_dir: Path) -> BinaryIO:
    """Open the journal. Raises OSError, also if the journal is a link or no regular file."""
    return _opened(EVENTS, os.fspath(run_dir), ())


class RunFiles:
    """Opens files of a run dir that are no links, and that belong to the owner of the journal.

    Otherwise anybody who can write into a run dir could make the page show files of the reader.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._made: dict[tuple[Path, Hashable], tuple[tuple[int, ...], Any]] = {}

    def open(self, path: Path) -> BinaryIO:
        """Open a file below the run dir, or a log in an `attempt_N/` elsewhere, which the journal names.

        Raises:
            OSError: the file cannot be opened, or must not be shown.
        """
        if path.is_relative_to(self._run_dir):
            base = self._run_dir
            inner = path.relative_to(self._run_dir).parts
        else:
            base = path.parents[1]
            inner = path.parts[-2:]
        if ".." in inner:
            raise PermissionError(errno.EPERM, "It may lie outside", str(path))
        with open_journal_without_links(self._run_dir) as journal:
            owner = os.fstat(journal.fileno()).st_uid
        file = _opened(inner[-1], os.fspath(base), inner[:-1])
        if os.fstat(file.fileno()).st_uid != owner:
            file.close()
            raise PermissionError(errno.EPERM, "It belongs to another user than the journal", str(path))
        return file

    def made_of(
        self, path: Path, make: Callable[[str], Made], most: int, *, end: bool = False, also: Hashable = ()
    ) -> Made:
        """Return `make` of a file's text. The result is cached until the file changes.

        Args:
            path: the file.
            make: turns the text into the result.
            most: most bytes to read.
            end: read the end of the file instead of the beginning.
            also: what else the result depends on; part of the key of the cache.

        Raises:
            OSError: the file cannot be opened, or must not be shown.
        """
        with self.open(path) as file:
            found = os.fstat(file.fileno())
            now = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
            state, made = self._made.get((path, also), ((), None))
            if state != now:
                made = make(_text(file, most, end=end))
                if len(self._made) >= _MOST_MADE:
                    self._made.clear()
                self._made[path, also] = now, made
        return cast("Made", made)

    def text(self, path: Path, most: int) -> str:
        """Return the first `most` bytes of a file as text. Raises OSError."""
        with self.open(path) as file:
            return _text(file, most)


def _text(file: BinaryIO, most: int, *, end: bool = False) -> str:
    """Read at most `most` bytes from the file's beginning or end. Raises OSError."""
    if end:
        file.seek(max(file.seek(0, os.SEEK_END) - most, 0))
    return file.read(most).decode(errors="replace")


def _opened(name: str, base: str, folders: tuple[str, ...]) -> BinaryIO:
    """Open a regular file below `base`, where neither the file nor a folder is a link. Raises OSError."""
    try:
        at = os.open(base, _FOLDER)
        try:
            for folder in folders:
                inner = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
                os.close(at)
                at = inner
            fd = os.open(name, _FILE, dir_fd=at)
        finally:
            os.close(at)
    except ValueError as error:  # a NUL or a lone surrogate in the name
        raise OSError(errno.EINVAL, "No file can have this name") from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "It is a symbolic link") from error
        raise
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        raise OSError(errno.EINVAL, "It is no regular file")
    return os.fdopen(fd, "rb")

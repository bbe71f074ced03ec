"""Files of a run dir that nobody vouches for: opened so that they lead nowhere else and keep nobody waiting."""

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


def open_journal(run_dir: Path) -> BinaryIO:
    """The journal, where it is a file and no link. Raises OSError."""
    return _opened(EVENTS, os.fspath(run_dir), ())


class RunFiles:
    """The other files of a run dir: those that lie in it, without links, and belong to whom its journal belongs.

    Whoever can write into a run dir could otherwise have the files of its reader shown.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._made: dict[tuple[Path, Hashable], tuple[tuple[int, ...], Any]] = {}

    def open(self, path: Path) -> BinaryIO:
        """Open a file below the run dir; of another place, which the journal names, one that lies in `attempt_N/`.

        Raises OSError, also for a file that is not to be shown.
        """
        if path.is_relative_to(self._run_dir):
            base, inner = self._run_dir, path.relative_to(self._run_dir).parts
        else:
            base, inner = path.parents[1], path.parts[-2:]
        if ".." in inner:
            raise PermissionError(errno.EPERM, "It may lie outside", str(path))
        with open_journal(self._run_dir) as journal:
            owner = os.fstat(journal.fileno()).st_uid
        file = _opened(inner[-1], os.fspath(base), inner[:-1])
        if os.fstat(file.fileno()).st_uid != owner:
            file.close()
            raise PermissionError(errno.EPERM, "It belongs to another user than the journal", str(path))
        return file

    def made_of(
        self, path: Path, make: Callable[[str], Made], most: int, *, end: bool = False, also: Hashable = ()
    ) -> Made:
        """What `make` makes of the text that `text` would give, made again only when the file has changed.

        also: what else it is made of. Raises OSError.
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
        """At most so many bytes of a file from its beginning, as text. Raises OSError."""
        with self.open(path) as file:
            return _text(file, most)


def _text(file: BinaryIO, most: int, *, end: bool = False) -> str:
    """At most so many bytes from the file's beginning, or from its end. Raises OSError."""
    if end:
        file.seek(max(file.seek(0, os.SEEK_END) - most, 0))
    return file.read(most).decode(errors="replace")


def _opened(name: str, base: str, folders: tuple[str, ...]) -> BinaryIO:
    """A regular file in folders of `base`, none of which is a link. Raises OSError."""
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
    except ValueError as error:  # a NUL or half a character: no name of a file
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

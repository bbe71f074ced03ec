"""Files of a run dir that nobody vouches for: opened so that they lead nowhere else and keep nobody waiting."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from ftlaunch.history.journal import EVENTS

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
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

    def text(self, path: Path, most: int, *, end: bool = False) -> str:
        """At most so many bytes of a file, from its beginning or its end, as text. Raises OSError."""
        with self.open(path) as file:
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

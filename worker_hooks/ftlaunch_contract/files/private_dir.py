"""Directories that only the user may enter, for the pages and snapshots of a user's jobs.

The last job of a user deletes the jobs' common parent, perhaps while another job begins.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


class NotPrivate(Exception):
    """A directory belongs to somebody else, or others may enter it."""


def make_private(path: Path) -> None:
    """Make a directory and its parent, both of mode 0700, where they are missing.

    Raises:
        NotPrivate: one of the two exists, and is not the user's own with mode 0700.
        OSError: one of the two cannot be made.
    """
    while True:
        try:
            return _make_private((path.parent, path))
        except FileNotFoundError:  # another job of the user has just ended and deleted the parent: try once more
            if not path.parent.parent.exists():
                raise


def _make_private(directories: Sequence[Path]) -> None:
    for directory in directories:
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        info = directory.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
            raise NotPrivate(f"{directory} must be a directory of yours with mode 0700")

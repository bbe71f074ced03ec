"""Checkpoints kept in a folder, `file:///path`: on a disk that outlives the machine, or on a shared file system."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import ClassVar
from urllib.parse import unquote, urlsplit

import xxhash

from ftlaunch.checkpoints.stores.store import ChangedError, Content, Spent
from ftlaunch_contract.files import atomic

_PIECE = 8 << 20  # bytes between two looks at the bandwidth
_LOCK = ".lock"
_UNFINISHED = ".unfinished-"  # how the name of a file begins that is being written


class FolderStore:
    """Objects as files below a folder. Implements CheckpointStore."""

    scheme: ClassVar[str] = "file"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.where = f"file://{folder}"

    @classmethod
    def open(cls, address: str) -> FolderStore:
        """Return the store at `file:///path`.

        Raises:
            ValueError: the address names a host, or no absolute path.
        """
        parts = urlsplit(address)
        path = unquote(parts.path)
        if parts.netloc not in ("", "localhost") or not path.startswith("/"):
            raise ValueError("it must be file:///PATH, with an absolute path and no host")
        return cls(Path(path))

    def read(self, name: str) -> Content | None:
        """Return a small object; None if there is none. Raises OSError."""
        try:
            data = (self._folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Content(data, _version(data))

    def replace(self, name: str, data: bytes, version: str | None) -> str:
        """Replace an object if it has the given version (None: if there is none), under a lock on the folder.

        Raises:
            ChangedError: the object has another version.
            OSError: the folder cannot be locked, read or written.
        """
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = self.read(name)
            if (None if found is None else found.version) != version:
                raise ChangedError(name)
            atomic.replace_durable(path, data)
        finally:
            os.close(lock)
        return _version(data)

    def upload(self, path: Path, name: str, spent: Spent) -> None:
        """Copy a file to an object, which gets its name once it is whole and on disk. Raises OSError."""
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f"{_UNFINISHED}{os.getpid()}-{target.name}")
        try:
            _copy(path, unfinished, spent)
            unfinished.replace(target)
            atomic.fsync_dir(target.parent)
        finally:
            unfinished.unlink(missing_ok=True)

    def read_pieces(self, name: str, part: tuple[int, int] | None = None) -> Iterator[memoryview]:
        """Yield the content of an object, or of a part of it. Raises OSError; FileNotFoundError if there is none."""
        with (self._folder / name).open("rb") as file:
            begin, end = part or (0, os.fstat(file.fileno()).st_size)
            file.seek(begin)
            while piece := file.read(min(_PIECE, end - begin)):
                yield memoryview(piece)
                begin += len(piece)

    def delete(self, name: str) -> None:
        """Delete an object, and the folders that are empty then. Raises OSError."""
        path = self._folder / name
        path.unlink(missing_ok=True)
        for parent in path.parents:
            if parent == self._folder:
                return
            try:
                parent.rmdir()
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    raise
                return

    def names(self, prefix: str) -> Iterator[str]:
        """Yield the names of the objects that begin with `prefix`, and of what a killed process has left half-written.

        Nobody asks for the latter by name: they are deleted as leftovers.

        Raises:
            OSError: the folder cannot be listed.
        """
        for folder, _, files in os.walk(self._folder, onerror=_raise_unless_missing):
            for file in files:
                name = str(PurePosixPath(Path(folder, file).relative_to(self._folder)))
                if name.startswith(prefix) and file != _LOCK:
                    yield name


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error


def _version(data: bytes) -> str:
    return xxhash.xxh3_128(data).hexdigest()


def _copy(source: Path, target: Path, spent: Spent) -> None:
    """Copy a file and write it to disk. A target that could not be completed is removed. Raises OSError."""
    try:
        with source.open("rb") as read, target.open("wb") as written:
            while piece := read.read(_PIECE):
                written.write(piece)
                spent(len(piece))
            written.flush()
            os.fsync(written.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            target.unlink(missing_ok=True)
        raise

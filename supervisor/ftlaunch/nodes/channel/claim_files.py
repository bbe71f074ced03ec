"""The files of the claims, in a folder that all nodes share: what its server does at once, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ftlaunch_contract.files import atomic
from ftlaunch_contract.files.regular_file import open_regular

_MOST = 4096  # bytes


class ClaimStore(Protocol):
    """Each method is one request to the server, which may fail although the server has done it. Raises OSError."""

    def read(self, name: str) -> bytes:
        """The content of a file, which is opened by its name."""

    def names(self) -> list[str]:
        """The files that are there; the newest may be missing."""

    def write(self, name: str, content: bytes, *, durable: bool) -> None:
        """Write a file that nobody else writes."""

    def link(self, written: str, name: str) -> None:
        """Give a written file a second name. Raises FileExistsError where the name is taken."""

    def links(self, written: str) -> int:
        """How many names a written file has."""

    def replace(self, written: str, name: str) -> None:
        """Give a written file another name, whose file it replaces."""

    def remove(self, name: str) -> None:
        """Remove a name, where it is there."""


class ClaimFiles:
    """Files in a folder."""

    def __init__(self, folder: Path) -> None:
        """folder: is made when something is written there first."""
        self.folder = folder

    def read(self, name: str) -> bytes:
        """See ClaimStore."""
        with open_regular(self.folder / name) as file:
            return file.read(_MOST)

    def names(self) -> list[str]:
        """See ClaimStore."""
        try:
            return [path.name for path in self.folder.iterdir()]
        except FileNotFoundError:
            return []

    def write(self, name: str, content: bytes, *, durable: bool) -> None:
        """See ClaimStore."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        if durable:
            atomic.write_durable(self.folder / name, content)
        else:
            (self.folder / name).write_bytes(content)

    def link(self, written: str, name: str) -> None:
        """See ClaimStore."""
        atomic.link_once(self.folder / written, self.folder / name)

    def links(self, written: str) -> int:
        """See ClaimStore."""
        return (self.folder / written).stat().st_nlink

    def replace(self, written: str, name: str) -> None:
        """See ClaimStore."""
        (self.folder / written).replace(self.folder / name)

    def remove(self, name: str) -> None:
        """See ClaimStore."""
        (self.folder / name).unlink(missing_ok=True)

"""The files of claims, in a folder that all nodes share.

`ClaimStore` has only operations that a file server does at once or not at all. `ClaimFiles` is the real folder; the
simulation has a store of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ftlaunch_contract.files import atomic
from ftlaunch_contract.files.regular_file import open_regular

_MOST_BYTES = 4096  # of a file that are read


class ClaimStore(Protocol):
    """Files in a shared folder.

    Each method is one request to the file server. Each may raise OSError, even if the server has done what was asked.
    """

    def read(self, name: str) -> bytes:
        """Return the content of the file that has this name now."""

    def list_names(self) -> list[str]:
        """Return the names of the files; the newest may be missing."""

    def write(self, name: str, content: bytes, *, durable: bool) -> None:
        """Write a file under a name that nobody else writes.

        Args:
            name: the name of the file.
            content: all its bytes.
            durable: whether the bytes must reach the disk before the method returns.
        """

    def link(self, written: str, name: str) -> None:
        """Give a written file a second name.

        Raises:
            FileExistsError: the name is taken.
        """

    def count_links(self, written: str) -> int:
        """Return how many names a written file has."""

    def replace(self, written: str, name: str) -> None:
        """Rename a written file, and replace the file of that name."""

    def remove(self, name: str) -> None:
        """Remove a name, if it exists."""


class ClaimFiles:
    """A ClaimStore in a folder of the run dir."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`, which is made at the first write."""
        self.folder = folder

    def read(self, name: str) -> bytes:
        """Return the content of the file that has this name now. NFS asks its server at each open."""
        with open_regular(self.folder / name) as file:
            return file.read(_MOST_BYTES)

    def list_names(self) -> list[str]:
        """Return the names of the files. NFS may answer from a cache, without the newest."""
        try:
            return [path.name for path in self.folder.iterdir()]
        except FileNotFoundError:
            return []

    def write(self, name: str, content: bytes, *, durable: bool) -> None:
        """Write a file, and make the folder first if it is missing."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        if durable:
            atomic.write_durable(self.folder / name, content)
        else:
            (self.folder / name).write_bytes(content)

    def link(self, written: str, name: str) -> None:
        """Give a written file a second name by link(2). Raises FileExistsError if the name is taken."""
        atomic.link_once(self.folder / written, self.folder / name)

    def count_links(self, written: str) -> int:
        """Return how many names a written file has."""
        return (self.folder / written).stat().st_nlink

    def replace(self, written: str, name: str) -> None:
        """Rename a written file, and replace the file of that name."""
        (self.folder / written).replace(self.folder / name)

    def remove(self, name: str) -> None:
        """Remove a name, if it exists."""
        (self.folder / name).unlink(missing_ok=True)

"""One snapshot slot of a rank of MindSpore's: its files on tmpfs or, where there is no room, on storage."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from ftlaunch_contract.checkpoint import layout
from ftlaunch_mindspore.saving import arrays
from ftlaunch_mindspore.saving.arrays import Array

BESIDES = 256 << 10  # bytes of a slot besides its arrays

Groups = Mapping[str, Mapping[str, Array]]
"""Group of files -> key -> values."""


class ArraySlot:
    """Its files are written anew with each snapshot, and opened to be saved."""

    def __init__(self, directory: Path, rank: int, number: int, storage: Path | None = None) -> None:
        """directory: of all slots. storage: where the slot lies behind a link; None: it lies in `directory`."""
        self.directory = layout.slot_dir(directory, rank, number)
        self._storage = storage
        self.exists = self.directory.exists()  # this attempt or an earlier one has made its files
        self._opened = ExitStack()

    @property
    def memory(self) -> int:
        """Bytes of memory it takes."""
        if self._storage is not None or not self.exists:
            return 0
        return sum(file.stat().st_blocks * 512 for file in os.scandir(self.directory))

    def write(self, groups: Groups, common: bytes) -> None:
        """Write a snapshot. The slot's step must have been withdrawn. Raises OSError."""
        self.close()
        self.exists = True
        if self._storage is not None:
            layout.link_slot(self.directory, self._storage / self.directory.name)
        self.directory.mkdir(mode=0o700, exist_ok=True)
        for group in layout.GROUPS:
            arrays.write(layout.slot_file(self.directory, group), groups[group])
        (self.directory / layout.COMMON).write_bytes(common)

    def files(self) -> dict[str, int]:
        """group -> descriptor of its tensor file; open until the next snapshot is written. Raises OSError."""
        self.close()
        found = {}
        for group in layout.GROUPS:
            found[group] = os.open(layout.slot_file(self.directory, group), os.O_RDONLY | os.O_CLOEXEC)
            self._opened.callback(os.close, found[group])
        return found

    def read_common(self) -> bytes:
        """What is not an array. Raises OSError."""
        return (self.directory / layout.COMMON).read_bytes()

    def discard(self) -> None:
        """Delete the files, so that their memory is free."""
        self.close()
        if self.exists:
            layout.remove_slot(self.directory)
            self.exists = False

    def close(self) -> None:
        """Close what is open; the files stay."""
        self._opened.close()

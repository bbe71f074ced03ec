"""A snapshot slot of a MindSpore rank: a directory of tensor files, on tmpfs or on storage.

MindSporeSnapshots owns the slots of its rank and uses them on the training thread, at step boundaries.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from ftlaunch_contract.checkpoint import layout
from ftlaunch_mindspore.saving import arrays
from ftlaunch_mindspore.saving.arrays import Array

BESIDES = 256 << 10  # an upper bound of the bytes that a slot takes besides its arrays: headers and common.json

Groups = Mapping[str, Mapping[str, Array]]
"""Group of files -> key -> values."""


class ArraySlot:
    """A slot whose files are overwritten by each snapshot, and opened for the saver."""

    def __init__(self, directory: Path, rank: int, number: int, storage: Path | None = None) -> None:
        """Take over the slot's files where an earlier attempt has left them.

        Args:
            directory: holds the slots of all ranks.
            rank: whose slot this is.
            number: of the slot, within its rank.
            storage: the directory to which the slot is linked; None for a slot that lies in `directory` itself.
        """
        self.directory = layout.slot_dir(directory, rank, number)
        self._storage = storage
        self.exists = self.directory.exists()  # made by this attempt, or by an earlier one
        self._opened = ExitStack()

    @property
    def memory(self) -> int:
        """Bytes of memory that the slot's files take."""
        if self._storage is not None or not self.exists:
            return 0
        return sum(file.stat().st_blocks * 512 for file in os.scandir(self.directory))

    def write(self, groups: Groups, common: bytes) -> None:
        """Write a snapshot. The page must no longer name a step for this slot.

        Args:
            groups: the arrays of the state.
            common: the content of common.json.

        Raises:
            OSError: the files cannot be written, for instance for lack of space.
        """
        self.close()
        self.exists = True
        if self._storage is not None:
            layout.link_slot(self.directory, self._storage / self.directory.name)
        self.directory.mkdir(mode=0o700, exist_ok=True)
        for group in layout.GROUPS:
            arrays.write(layout.slot_file(self.directory, group), groups[group])
        (self.directory / layout.COMMON).write_bytes(common)

    def files(self) -> dict[str, int]:
        """Open the tensor files.

        Returns:
            File descriptors by group. The slot closes them before its next snapshot is written.

        Raises:
            OSError: a file cannot be opened.
        """
        self.close()
        found = {}
        for group in layout.GROUPS:
            found[group] = os.open(layout.slot_file(self.directory, group), os.O_RDONLY | os.O_CLOEXEC)
            self._opened.callback(os.close, found[group])
        return found

    def read_common(self) -> bytes:
        """Return the content of common.json. Raises OSError."""
        return (self.directory / layout.COMMON).read_bytes()

    def discard(self) -> None:
        """Delete the files and so free their memory."""
        self.close()
        if self.exists:
            layout.remove_slot(self.directory)
            self.exists = False

    def close(self) -> None:
        """Close the descriptors that `files` returned; the files stay."""
        self._opened.close()

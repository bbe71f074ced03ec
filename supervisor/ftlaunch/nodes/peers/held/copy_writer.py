"""The files of a copy while it is received: laid out as the snapshot's, with memory only for the chunks that come."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from ftlaunch.nodes.peers.held.kept_copies import Reserved
from ftlaunch.nodes.peers.held.room import reserve
from ftlaunch.nodes.peers.held.snapshot_files import create_file
from ftlaunch.nodes.peers.plan.chunk_places import Runs, byte_ranges, total
from ftlaunch.nodes.peers.plan.tensor_layout import SlotLayout
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.files import atomic


class CopyWriter:
    """Writes the files of one rank's copy."""

    def __init__(
        self, directory: Path, rank: int, slot: SlotLayout, present: Mapping[str, Runs], before: Reserved | None
    ) -> None:
        """Make the directory, and delete files that do not fit.

        Args:
            directory: the directory of the copy.
            rank: the rank.
            slot: the layouts of the snapshot's files.
            present: the chunks that come, by group.
            before: what is laid out in the directory already, or None.

        Raises:
            OSError: the directory cannot be made or cleared.
        """
        self._directory = directory
        self._slot = slot
        self._present = present
        self.headers = {group: found.digest for group, found in slot.items()}
        self._fits = before == (self.headers, dict(present))
        self.fds: dict[str, int] = {}
        for folder in (
            directory.parent.parent,
            directory.parent,
            directory,
        ):  # even the job's memory directory may be gone
            folder.mkdir(mode=0o700, exist_ok=True)
        if not self._fits:
            for path in directory.iterdir():
                path.unlink()
        self.bytes = total({rank: slot}, {rank: present})
        self.needed = 0 if self._fits else self.bytes + sum(len(found.header) for found in slot.values())
        """bytes of memory that must still be reserved"""

    def lay_out(self, alive: Callable[[], None]) -> None:
        """Open the files, and reserve their memory.

        Args:
            alive: called now and then; what it raises ends this call.

        Raises:
            OSError: there is no memory left, or a file cannot be made.
        """
        for group, found in self._slot.items():
            path = layout.slot_file(self._directory, group)
            if self._fits:
                self.fds[group] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            else:
                self.fds[group] = fd = create_file(path, found.header, found.size)
                reserve(fd, byte_ranges(found, self._present[group]), alive)

    def write_common(self, common: bytes) -> None:
        """Write common.json, which holds everything but the tensors. Raises OSError."""
        path = self._directory / layout.COMMON
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            atomic.write_all(fd, common)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Close the files."""
        for fd in self.fds.values():
            os.close(fd)
        self.fds = {}

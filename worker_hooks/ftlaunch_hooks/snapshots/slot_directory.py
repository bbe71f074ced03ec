"""The directory of one snapshot slot, whatever framework's tensors lie in it. Nothing here imports torch.

RankSnapshots uses a slot in the order that rank_snapshots.py describes.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

from ftlaunch_contract.checkpoint import health_mark, layout
from ftlaunch_contract.files import atomic

_MIB = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


class SnapshotError(OSError):
    """A snapshot cannot be kept; the message is a sentence for people."""


class NoRoomError(SnapshotError):
    """There is no room for a snapshot."""


class SlotDirectory(ABC):
    """The place of one snapshot of one rank: tensor files and common.json. A framework's slot writes the tensors."""

    def __init__(self, directory: Path, rank: int, number: int, storage: Path | None = None) -> None:
        """Find the slot. Its files are made when the first snapshot comes, or lie there from an earlier attempt.

        Args:
            directory: the directory of all slots.
            rank: the rank whose snapshots the slot holds.
            number: the slot's number.
            storage: where the slot lies behind a link; None: it lies in `directory` itself.
        """
        self.directory = layout.slot_dir(directory, rank, number)
        self._storage = storage
        self.exists = self.directory.exists()
        """whether this attempt or an earlier one has made the slot's files"""
        self._common = -1  # descriptor of common.json
        self._opened: dict[str, int] = {}  # group -> descriptor of a file that was opened for a reader

    @property
    def memory(self) -> int:
        """Return the bytes of memory that the slot takes; 0 for a slot on storage."""
        if self._storage is not None or not self.exists:
            return 0
        return sum(file.stat().st_blocks * 512 for file in os.scandir(self.directory))

    def open_directory(self) -> None:
        """Make the directory and common.json, where they are missing. Raises OSError."""
        if self._common >= 0:
            return
        self.exists = True
        if self._storage is not None:
            layout.link_slot(self.directory, self._storage / self.directory.name)
        self.directory.mkdir(mode=0o700, exist_ok=True)
        common = self.directory / layout.COMMON
        self._common = os.open(common, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def explain(self, needed: int, error: OSError) -> SnapshotError:
        """Return the error to raise, with a sentence for people, where a file could not be written.

        Args:
            needed: bytes that the slot's tensors take.
            error: what went wrong.
        """
        if self._storage is None:
            where = "in memory"
            place = self.directory.parent
        else:
            where = "on storage"
            place = self._storage
        if error.errno not in _FULL:
            return SnapshotError(f"cannot keep snapshots {where}: {error}")
        disk = os.statvfs(place)
        return NoRoomError(
            f"cannot keep snapshots {where}: {place} has {disk.f_bavail * disk.f_frsize // _MIB} MiB left, "
            f"{-(-needed // _MIB)} MiB needed for another slot"
        )

    @abstractmethod
    def _find_not_finite(self) -> str:
        """Return the key of a parameter that is not finite everywhere; empty when there is none."""

    def health(self, trouble: str, *, checks_parameters: bool) -> dict[str, str]:
        """Return the health mark of the snapshot, once its tensors are whole.

        Args:
            trouble: why it is not to be trusted; empty for nothing.
            checks_parameters: whether to read all parameters, too; done for a snapshot that becomes a checkpoint.
        """
        if trouble:
            return health_mark.mark(health_mark.ABNORMAL, trouble)
        if not checks_parameters:
            return health_mark.mark(health_mark.UNKNOWN, "its parameters were not looked at")
        if key := self._find_not_finite():
            return health_mark.mark(health_mark.ABNORMAL, f"{key} is not finite")
        return health_mark.mark(health_mark.NORMAL)

    def write_common(self, common: bytes) -> None:
        """Write common.json.

        Raises:
            NoRoomError: there is no room.
            SnapshotError: the file cannot be written for another reason.
        """
        try:
            os.ftruncate(self._common, 0)
            os.lseek(self._common, 0, os.SEEK_SET)
            atomic.write_all(self._common, common)
        except OSError as error:
            raise self.explain(0, error) from error

    def files(self) -> dict[str, int]:
        """Return the descriptor of each group's tensor file, which the caller must not close. Raises OSError."""
        return self._open_files(layout.GROUPS)

    def _open_files(self, groups: Iterable[str]) -> dict[str, int]:
        for group in groups:
            if group not in self._opened:
                path = layout.slot_file(self.directory, group)
                self._opened[group] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return dict(self._opened)

    def read_common(self) -> bytes:
        """Return what `write_common` wrote last, in this attempt or an earlier one. Raises OSError."""
        return (self.directory / layout.COMMON).read_bytes()

    def close(self) -> None:
        """Close the files, which stay."""
        for fd in self._opened.values():
            os.close(fd)
        self._opened = {}
        if self._common >= 0:
            os.close(self._common)
            self._common = -1

    def discard(self) -> None:
        """Delete the files, so that their memory is free."""
        self.close()
        if self.exists:
            layout.remove_slot(self.directory)
            self.exists = False

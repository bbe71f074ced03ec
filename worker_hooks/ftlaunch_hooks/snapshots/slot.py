"""One snapshot slot: its files on tmpfs (or on storage, where there is no room), mapped, and the tensors over them."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ftlaunch_contract.checkpoint import health_mark, layout
from ftlaunch_contract.checkpoint.tensor_file import Chunk
from ftlaunch_contract.files import atomic
from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.snapshots.copies import Copies, divide
from ftlaunch_hooks.snapshots.slot_file import NoRoomError, SlotFile, SnapshotError
from ftlaunch_hooks.state.collector import TensorItem

_MIB = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_OVERHEAD_BYTES = 64 << 10  # of a slot besides its tensors: common.json, and the fixed part of the headers


def bytes_needed(items: Sequence[TensorItem]) -> int:
    """Return an estimate, rather too high, of the bytes that a slot for these items takes."""
    owned = [item for item in items if item.owned]
    return _OVERHEAD_BYTES + sum(item.tensor.nbytes + 2 * len(item.key) + 512 for item in owned)


class Slot:
    """The place of one snapshot of one rank: tensor files and common.json."""

    def __init__(self, directory: Path, rank: int, number: int, storage: Path | None = None) -> None:
        """Find the slot. Its files are made by `lay_out`.

        Args:
            directory: the directory of all slots.
            rank: the rank whose snapshots the slot holds.
            number: the slot's number.
            storage: where the slot lies behind a link; None: it lies in `directory` itself.
        """
        self.directory = layout.slot_dir(directory, rank, number)
        self._storage = storage
        self.exists = self.directory.exists()  # whether this attempt or an earlier one has made its files
        self.host = Copies()  # from this process's memory
        self.device = Copies()  # from devices
        self._files: dict[str, SlotFile] = {}  # by group
        self._varying: dict[str, set[str]] = {group: set() for group in layout.GROUPS}  # chunks whose sizes change
        self._borrowed: dict[str, int] = {}  # group -> descriptor of a file that an earlier attempt has left
        self._common = -1  # descriptor of common.json
        self._chunks: dict[str, dict[str, Chunk]] = {}  # group -> name -> chunk
        self._collected: list[TensorItem] | None = None
        self._trained: list[tuple[str, Tensor]] = []  # key and copy of each parameter that an optimizer changes

    @property
    def memory(self) -> int:
        """Return the bytes of memory that the slot takes; 0 for a slot on storage."""
        if self._storage is not None or not self.exists:
            return 0
        return sum(file.stat().st_blocks * 512 for file in os.scandir(self.directory))

    def lay_out(self, collected: list[TensorItem]) -> None:
        """Make files for the items that this rank owns; files that have the right layout already stay.

        The slot's step must have been withdrawn before.

        Raises:
            NoRoomError: there is no room.
            SnapshotError: the files cannot be made for another reason.
        """
        if collected is self._collected:
            return
        items = [item for item in collected if item.owned]
        chunks = {group: {item.key: item.chunk for item in items if item.group == group} for group in layout.GROUPS}
        if chunks != self._chunks:
            writers = {item.group: item.tensor.device for item in items if device_port.is_on_device(item.tensor)}
            try:
                for group in layout.GROUPS:
                    self._lay_out_file(group, chunks[group], writers.get(group))
            except OSError as error:
                self.close()
                raise self._shortage(chunks, error) from error
            self._chunks = chunks
        pairs = [(item, self._files[item.group].tensors[item.key]) for item in items]
        self.host, self.device = divide((item.tensor, copy) for item, copy in pairs)
        self._trained = [
            (item.key, copy)
            for item, copy in pairs
            if item.settled and item.group == "model" and copy.dtype in _FLOATS and copy.numel()
        ]
        self._collected = collected

    def _lay_out_file(self, group: str, chunks: dict[str, Chunk], writer: torch.device | None) -> None:
        """Make the file of a group for these chunks, or change only what must change in it.

        writer: a device that will write to the file; None for none.
        """
        before = self._chunks.get(group)
        file = self._files.get(group)
        if file is not None and before is not None:
            if chunks == before or file.lay_out_tail(chunks.values()):
                return
            changed = {name for name in before.keys() | chunks.keys() if before.get(name) != chunks.get(name)}
            self._varying[group] |= changed
            file.close()
            del self._files[group]
        if not self._files and self._common < 0:
            self._open_directory()
        self._varying[group] &= chunks.keys()
        path = layout.slot_file(self.directory, group)
        self._files[group] = SlotFile(path, chunks.values(), writer=writer, varying=self._varying[group])

    def _open_directory(self) -> None:
        self.exists = True
        if self._storage is not None:
            layout.link_slot(self.directory, self._storage / self.directory.name)
        self.directory.mkdir(mode=0o700, exist_ok=True)
        common = self.directory / layout.COMMON
        self._common = os.open(common, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _shortage(self, chunks: dict[str, dict[str, Chunk]], error: OSError) -> SnapshotError:
        needed = sum(chunk.nbytes for group in chunks.values() for chunk in group.values())
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

    def health(self, trouble: str, *, should_read: bool) -> dict[str, str]:
        """Return the health mark of the snapshot, once it is whole.

        Args:
            trouble: why it is not to be trusted; empty for nothing.
            should_read: whether to read all parameters, too; done for a snapshot that becomes a checkpoint.
        """
        if trouble:
            return health_mark.mark(health_mark.ABNORMAL, trouble)
        if not should_read:
            return health_mark.mark(health_mark.UNKNOWN, "its parameters were not looked at")
        if key := self._find_not_finite():
            return health_mark.mark(health_mark.ABNORMAL, f"{key} is not finite")
        return health_mark.mark(health_mark.NORMAL)

    def _find_not_finite(self) -> str:
        """Return the key of a trained parameter whose copy is not finite everywhere; empty when there is none."""
        for key, copy in self._trained:
            least, most = torch.aminmax(copy)
            if not (math.isfinite(least) and math.isfinite(most)):
                return key
        return ""

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
            raise self._shortage({}, error) from error

    def files(self) -> dict[str, int]:
        """Return the descriptor of each group's tensor file, which the caller must not close. Raises OSError.

        The files of a slot that an earlier attempt has left are opened.
        """
        for group in layout.GROUPS:
            if group not in self._files and group not in self._borrowed:
                path = layout.slot_file(self.directory, group)
                self._borrowed[group] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return {**self._borrowed, **{group: file.fd for group, file in self._files.items()}}

    def read_common(self) -> bytes:
        """Return what `write_common` wrote last, in this attempt or an earlier one. Raises OSError."""
        return (self.directory / layout.COMMON).read_bytes()

    def close(self) -> None:
        """Unmap and close the files, which stay."""
        self.host = Copies()
        self.device = Copies()
        self._chunks = {}
        self._collected = None
        self._trained = []
        for file in self._files.values():
            file.close()
        for fd in self._borrowed.values():
            os.close(fd)
        self._files = {}
        self._borrowed = {}
        if self._common >= 0:
            os.close(self._common)
            self._common = -1

    def discard(self) -> None:
        """Delete the files, so that their memory is free."""
        self.close()
        if self.exists:
            layout.remove_slot(self.directory)
            self.exists = False

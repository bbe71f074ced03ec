"""One snapshot slot: its files on tmpfs (or on storage, where there is no room), mapped, and the tensors over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.checkpoint.tensor_file import Chunk
from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.snapshots.copies import Copies, divide
from ftlaunch_hooks.snapshots.slot_directory import SlotDirectory
from ftlaunch_hooks.snapshots.slot_file import SlotFile
from ftlaunch_hooks.state.collector import TensorItem

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_OVERHEAD_BYTES = 64 << 10  # of a slot besides its tensors: common.json, and the fixed part of the headers


def bytes_needed(items: Sequence[TensorItem]) -> int:
    """Return an estimate, rather too high, of the bytes that a slot for these items takes."""
    owned = [item for item in items if item.owned]
    return _OVERHEAD_BYTES + sum(item.tensor.nbytes + 2 * len(item.key) + 512 for item in owned)


class Slot(SlotDirectory):
    """A slot whose tensor files are mapped."""

    def __init__(self, directory: Path, rank: int, number: int, storage: Path | None = None) -> None:
        """Find the slot, as SlotDirectory does. Its files are made by `lay_out`."""
        super().__init__(directory, rank, number, storage)
        self.host = Copies()  # from this process's memory
        self.device = Copies()  # from devices
        self._files: dict[str, SlotFile] = {}  # by group
        self._varying: dict[str, set[str]] = {group: set() for group in layout.GROUPS}  # chunks whose sizes change
        self._chunks: dict[str, dict[str, Chunk]] = {}  # group -> name -> chunk
        self._collected: list[TensorItem] | None = None
        self._trained: list[tuple[str, Tensor]] = []  # key and copy of each parameter that an optimizer changes

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
                needed = sum(chunk.nbytes for group in chunks.values() for chunk in group.values())
                raise self.explain(needed, error) from error
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
        self.open_directory()
        self._varying[group] &= chunks.keys()
        path = layout.slot_file(self.directory, group)
        self._files[group] = SlotFile(path, chunks.values(), writer=writer, varying=self._varying[group])

    def _find_not_finite(self) -> str:
        """Return the key of a trained parameter whose copy is not finite everywhere; empty when there is none."""
        for key, copy in self._trained:
            least, most = torch.aminmax(copy)
            if not (math.isfinite(least) and math.isfinite(most)):
                return key
        return ""

    def files(self) -> dict[str, int]:
        """Return the descriptor of each group's tensor file, which the caller must not close. Raises OSError.

        The files of a slot that an earlier attempt has left are opened.
        """
        opened = self._open_files(group for group in layout.GROUPS if group not in self._files)
        return {**opened, **{group: file.fd for group, file in self._files.items()}}

    def close(self) -> None:
        """Unmap and close the files, which stay."""
        self.host = Copies()
        self.device = Copies()
        self._chunks = {}
        self._collected = None
        self._trained = []
        for file in self._files.values():
            file.close()
        self._files = {}
        super().close()

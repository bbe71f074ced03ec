"""One snapshot slot: its files on tmpfs (or on storage, where there is no room), mapped, and the tensors over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.checkpoint.tensor_file import Chunk
from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.snapshots.copies import Copies, divide
from ftlaunch_hooks.snapshots.slot_directory import SlotDirectory
from ftlaunch_hooks.snapshots.slot_file import TEMPORARY, SlotFile
from ftlaunch_hooks.snapshots.slot_preparation import SlotPreparation
from ftlaunch_hooks.state.collector import TensorItem

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_OVERHEAD_BYTES = 64 << 10  # of a slot besides its tensors: common.json, and the fixed part of the headers


def bytes_needed(items: Sequence[TensorItem]) -> int:
    """Return an estimate, rather too high, of the bytes that a slot for these items takes."""
    owned = [item for item in items if item.owned]
    return _OVERHEAD_BYTES + sum(item.tensor.nbytes + 2 * len(item.key) + 512 for item in owned)


def _by_group(collected: Sequence[TensorItem]) -> tuple[dict[str, dict[str, Chunk]], dict[str, torch.device]]:
    """Return for each group the chunks that this rank owns, and the device that writes to the group's file, if any."""
    items = [item for item in collected if item.owned]
    chunks = {group: {item.key: item.chunk for item in items if item.group == group} for group in layout.GROUPS}
    return chunks, {item.group: item.tensor.device for item in items if device_port.is_on_device(item.tensor)}


class Slot(SlotDirectory):
    """A slot whose tensor files are mapped."""

    def __init__(self, directory: Path, rank: int, number: int, storage: Path | None = None) -> None:
        """Find the slot, as SlotDirectory does. Its files are made by `lay_out`, and may be prepared by `prepare`.

        What an earlier attempt has left half prepared is deleted.
        """
        super().__init__(directory, rank, number, storage)
        for group in layout.GROUPS:
            path = layout.slot_file(self.directory, group)
            path.with_name(path.name + TEMPORARY).unlink(missing_ok=True)
        self.host = Copies()  # from this process's memory
        self.device = Copies()  # from devices
        self.on_devices: list[tuple[TensorItem, Tensor]] = []  # what `device` copies: items, and their places
        self._files: dict[str, SlotFile] = {}  # by group
        self._prepared: dict[str, SlotFile] = {}  # by group: files for the next snapshot, prepared at least in part
        self._preparation: SlotPreparation | None = None  # owns the files of `_prepared` as long as it runs
        self._varying: dict[str, set[str]] = {group: set() for group in layout.GROUPS}  # chunks whose sizes change
        self._chunks: dict[str, dict[str, Chunk]] = {}  # group -> name -> chunk
        self._collected: list[TensorItem] | None = None
        self._trained: list[tuple[str, Tensor]] = []  # key and copy of each parameter that an optimizer changes

    @property
    def is_laid_out(self) -> bool:
        """Whether this process has laid out the slot."""
        return bool(self._files)

    def prepare(self, collected: list[TensorItem], has_room: Callable[[int], bool], on_end: Callable[[], None]) -> bool:
        """Begin to prepare, in a thread, the files that the slot's next snapshot needs if it has these items.

        The step that the slot holds stays as it is.

        Args:
            collected: all items, as for `lay_out`.
            has_room: returns whether that many more bytes of memory may be taken.
            on_end: called in the thread when all is prepared, or when there is no room.

        Returns:
            Whether there is anything to prepare, and room for it.
        """
        self.end_preparation()
        if collected is self._collected:
            return False
        chunks, writers = _by_group(collected)
        for group, prepared in list(self._prepared.items()):
            if prepared.chunks != chunks[group] or prepared.writer != writers.get(group):
                prepared.close()
                del self._prepared[group]
        try:
            for group in layout.GROUPS:
                if group not in self._prepared and not self._has_file_for(group, chunks[group]):
                    self.open_directory()
                    path = layout.slot_file(self.directory, group)
                    self._prepared[group] = SlotFile(
                        path,
                        chunks[group].values(),
                        writer=writers.get(group),
                        varying=self._varying_in(group, chunks[group]),
                        is_ahead=True,
                    )
            if all(file.is_prepared for file in self._prepared.values()):
                return False
            if has_room(sum(file.missing for file in self._prepared.values())):
                self._preparation = SlotPreparation(self._prepared, on_end)
                return True
        except (OSError, RuntimeError):
            pass  # no room, or no thread: the snapshot lays out the slot, and says what is wrong
        self.drop_prepared()
        return False

    def end_preparation(self) -> None:
        """End the thread that prepares files, if there is one. What it has prepared stays for the next snapshot."""
        if self._preparation is not None:
            self._prepared = self._preparation.end()
            self._preparation = None

    def drop_prepared(self) -> None:
        """Give back the memory of files that are prepared and that no snapshot has used."""
        self.end_preparation()
        for file in self._prepared.values():
            file.close()
        self._prepared = {}

    def _has_file_for(self, group: str, chunks: dict[str, Chunk]) -> bool:
        """Whether the file that the slot has may hold these chunks."""
        file = self._files.get(group)
        return file is not None and (file.chunks == chunks or file.fits(chunks.values()))

    def lay_out(self, collected: list[TensorItem]) -> None:
        """Make files for the items that this rank owns; files that have the right layout already stay.

        The slot's step must have been withdrawn before.

        Raises:
            NoRoomError: there is no room.
            SnapshotError: the files cannot be made for another reason.
        """
        if collected is self._collected:
            return
        chunks, writers = _by_group(collected)
        if chunks != self._chunks:
            self.end_preparation()
            try:
                for group in layout.GROUPS:
                    self._lay_out_file(group, chunks[group], writers.get(group))
            except OSError as error:
                self.close()
                needed = sum(chunk.nbytes for group in chunks.values() for chunk in group.values())
                raise self.explain(needed, error) from error
            self._chunks = chunks
        for group, file in self._files.items():
            file.pin_for(writers.get(group))  # tensors may have moved to a device since the file was made
        items = [item for item in collected if item.owned]
        pairs = [(item, self._files[item.group].tensors[item.key]) for item in items]
        self.host, self.device = divide((item.tensor, copy) for item, copy in pairs)
        self.on_devices = [(item, copy) for item, copy in pairs if device_port.is_on_device(item.tensor)]
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
        file = self._files.get(group)
        prepared = self._prepared.pop(group, None)
        varying = self._varying_in(group, chunks)
        if file is not None and (file.chunks == chunks or file.lay_out_tail(chunks.values())):
            if prepared is not None:
                prepared.close()
            return
        if file is not None:
            file.close()
            del self._files[group]
        if prepared is not None and (prepared.writer != writer or not prepared.fits(chunks.values())):
            prepared.close()
            prepared = None
        if prepared is None:
            self.open_directory()
            prepared = SlotFile(
                layout.slot_file(self.directory, group), chunks.values(), writer=writer, varying=varying
            )
        try:
            prepared.take_place()
            if prepared.chunks != chunks:
                prepared.lay_out_tail(chunks.values())
        except OSError:
            prepared.close()
            raise
        self._varying[group] = varying
        self._files[group] = prepared

    def _varying_in(self, group: str, chunks: dict[str, Chunk]) -> set[str]:
        """Return which of these chunks are known to change their sizes: those that differ from the file's, too."""
        varying = self._varying[group]
        file = self._files.get(group)
        if file is not None:
            names = file.chunks.keys() | chunks.keys()
            varying = varying | {name for name in names if file.chunks.get(name) != chunks.get(name)}
        return varying & chunks.keys()

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
        self.on_devices = []
        self._chunks = {}
        self._collected = None
        self._trained = []
        self.drop_prepared()
        for file in self._files.values():
            file.close()
        self._files = {}
        super().close()

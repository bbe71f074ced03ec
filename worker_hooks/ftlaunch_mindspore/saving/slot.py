"""A snapshot slot of a MindSpore rank, whose tensor files are written from NumPy arrays.

MindSporeSnapshots uses the slots of its rank on the training thread, at step boundaries.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ftlaunch_contract.checkpoint import layout
from ftlaunch_hooks.snapshots.slot_directory import SlotDirectory
from ftlaunch_mindspore.saving import arrays
from ftlaunch_mindspore.saving.arrays import Array

_OVERHEAD_BYTES = 256 << 10  # more than a slot takes besides its arrays: headers and common.json

Groups = Mapping[str, Mapping[str, Array]]
"""Group of files -> key -> values."""


def bytes_needed(groups: Groups) -> int:
    """Return an estimate, rather too high, of the bytes that a slot for these arrays takes."""
    return sum(array.nbytes for group in groups.values() for array in group.values()) + _OVERHEAD_BYTES


class ArraySlot(SlotDirectory):
    """A slot whose tensor files are overwritten by each snapshot."""

    def __init__(self, directory: Path, rank: int, number: int, storage: Path | None = None) -> None:
        """Find the slot, as SlotDirectory does."""
        super().__init__(directory, rank, number, storage)
        self._parameters: Mapping[str, Array] = {}  # until common.json is written

    def write(self, groups: Groups) -> None:
        """Write the tensor files. The page must no longer name a step for this slot.

        Args:
            groups: the arrays of the state.

        Raises:
            NoRoomError: there is no room.
            SnapshotError: the files cannot be written for another reason.
        """
        try:
            self.open_directory()
            for group in layout.GROUPS:
                arrays.write(layout.slot_file(self.directory, group), groups[group])
        except OSError as error:
            raise self.explain(bytes_needed(groups), error) from error
        self._parameters = groups["model"]

    def _find_not_finite(self) -> str:
        return next((key for key, array in self._parameters.items() if not _is_finite(array)), "")

    def write_common(self, common: bytes) -> None:
        """Write common.json, as SlotDirectory does, and let go of the arrays."""
        self._parameters = {}
        super().write_common(common)


def _is_finite(array: Array) -> bool:
    """Return whether no value is NaN or infinite; arrays of integers and complex numbers always pass."""
    wide = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    return wide.dtype.kind != "f" or bool(np.isfinite(wide).all())

"""Keep the newest steps of one MindSpore rank as snapshots in memory.

KeptJob calls everything here on the training thread, at step boundaries, while training waits. The ranks of a job agree
on the number of slots by their shared pages.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from ftlaunch_contract.checkpoint import health_mark
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import PEER_SLOTS, STAGED, Why
from ftlaunch_hooks.job.coordinator import Coordinator
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.snapshots.memory_budget import MemoryBudget
from ftlaunch_hooks.snapshots.slots import Slots
from ftlaunch_mindspore.saving.arrays import Array
from ftlaunch_mindspore.saving.slot import BESIDES, ArraySlot, Groups

_FULL = (errno.ENOSPC, errno.EDQUOT)


class MindSporeSnapshots:
    """The snapshots of one rank."""

    def __init__(self, coordinator: Coordinator, base: int) -> None:
        """Take over the slots of the attempt before.

        Args:
            coordinator: who decides for this rank.
            base: the step that all ranks restored from memory, or NONE.
        """
        self._page = coordinator.page
        rank = coordinator.rank
        directory = coordinator.memory_dir
        self.budget = MemoryBudget(rank, coordinator.peers, directory, first=coordinator.node.first)
        self._progress = self.budget.progress
        slots = [ArraySlot(directory, rank, number) for number in range(PEER_SLOTS)]
        slots.append(ArraySlot(directory, rank, STAGED, storage=coordinator.storage_slots))
        self._slots = Slots(self._page, self.budget, slots)
        self._slots.begin_from(base)

    @property
    def newest(self) -> int:
        """The newest step that this rank holds in memory, or NONE before the first snapshot."""
        return self._slots.newest

    def fit(self, step: int, groups: Groups) -> None:
        """Agree with the other ranks on the number of slots that fit into memory.

        All ranks call this at the boundary of `step`. Snapshots of steps that not every rank holds are withdrawn.

        Args:
            step: number of completed steps.
            groups: the arrays of the state, for their size in bytes.
        """
        need = sum(array.nbytes for group in groups.values() for array in group.values()) + BESIDES
        base = self.budget.agree(step, need, self._slots.memory)
        if base is not None:
            self._slots.begin_from(base)
            self._slots.discard_surplus()

    def take(
        self, step: int, groups: Groups, common: Mapping[str, Any], hold: Why | None = None, keep: int = NONE
    ) -> bool:
        """Write the snapshot of `step`, once every rank has the snapshot before.

        Args:
            step: number of completed steps.
            groups: the arrays of the state.
            common: the rest of common.json, besides the step and the health mark.
            hold: why the saver wants this snapshot, which then stays until it is saved; None for an ordinary snapshot.
            keep: the step whose slot must not be overwritten, or NONE (SlotPolicy.free).

        Returns:
            Whether the snapshot was written.
        """
        if not self.budget.slots and hold is None:
            return False
        ready = self._slots.wait_for_peers(step)
        if self._slots.left_behind(step):
            if hold is not None:
                self._progress.missed(step)
            return False
        content = _common(step=step, groups=groups, common=common, hold=hold)
        taken = ready and self._write(self._slots.vacate(keep), step=step, groups=groups, common=content)
        if hold is not None and not taken:  # without memory the saver gets its snapshot by way of storage
            taken = self._write(self._slots.vacate_staged(keep), step=step, groups=groups, common=content)
        if hold is not None and taken:
            self._page.hold_for_saver(step, hold)
        elif hold is not None:
            self._progress.missed(step)
        return taken

    def _write(self, number: int | None, step: int, groups: Groups, common: bytes) -> bool:
        """Write into the slot `number`. Return False without a slot, or without space for it."""
        if number is None:
            return False
        try:
            self._slots[number].write(groups, common)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            say(f"there is no room for a snapshot of step {step} in {self._slots[number].directory}: {error.strerror}")
            if number != STAGED:
                self._progress.failed()  # the ranks agree on less at the next step
            return False
        self._slots.commit(number, step)
        return True

    def slot_files(self, step: int) -> tuple[dict[str, int], bytes]:
        """Open the snapshot of `step` for the saver (shard_saver.HeldSnapshots).

        Returns:
            File descriptors by group, and the content of common.json.

        Raises:
            LookupError: no slot holds the step.
            OSError: a file cannot be opened or read.
        """
        slot = self._slots.holding(step)
        return slot.files(), slot.read_common()


def _common(step: int, groups: Groups, common: Mapping[str, Any], hold: Why | None) -> bytes:
    """Return the content of common.json. Only a snapshot for the saver is checked for NaN and infinity."""
    health = health_mark.mark(health_mark.UNKNOWN, "its parameters were not looked at")
    if hold is not None:
        bad = next((key for key, array in groups["model"].items() if not _is_finite(array)), None)
        health = health_mark.mark(health_mark.NORMAL)
        if bad is not None:
            health = health_mark.mark(health_mark.ABNORMAL, f"{bad} is not finite")
    return json.dumps({"step": step, health_mark.KEY: health, **common}).encode()


def _is_finite(array: Array) -> bool:
    """Whether no value is NaN or infinite; arrays of integers and complex numbers always pass."""
    wide = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    return wide.dtype.kind != "f" or bool(np.isfinite(wide).all())

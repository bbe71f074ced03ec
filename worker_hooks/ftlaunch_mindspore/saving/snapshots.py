"""The snapshots of one rank of MindSpore's: written at a step boundary, while training waits, and read back."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ftlaunch_contract.checkpoint import health_mark, layout
from ftlaunch_contract.files.memory_pools import pools
from ftlaunch_contract.pages import words
from ftlaunch_contract.pages.memory_state import Memory, reduced_memory
from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_contract.protocol import MEMORY_SLOTS, STAGED, Why
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.snapshots.slot_policy import SlotPolicy
from ftlaunch_mindspore.saving import arrays
from ftlaunch_mindspore.saving.arrays import Array

_BESIDES = 256 << 10  # bytes of a slot besides its arrays
_FULL = (errno.ENOSPC, errno.EDQUOT)

Groups = Mapping[str, Mapping[str, Array]]


class MindSporeSnapshots:
    """The slots of one rank, whose node has no other ranks."""

    def __init__(self, page: Page, memory_dir: Path, rank: int, storage: Path, base: int) -> None:
        """base: the step that was restored from memory, or NONE. storage: for the slot on storage."""
        self._page, self._memory_dir, self._rank, self._storage = page, memory_dir, rank, storage
        self._slots = MEMORY_SLOTS
        self._open: list[ExitStack] = []
        self.newest = base
        steps = page.slot_steps()
        for number, step in enumerate(steps):
            if step not in (base, page.reading):
                page.set_slot(number, NONE)
        page.q[words.TAKEN] = base + 1

    def fit(self, groups: Groups, interval: int) -> int:
        """Find how many slots there is room for; returns the steps between snapshots that follow from it."""
        needed = sum(array.nbytes for group in groups.values() for array in group.values()) + _BESIDES
        held = sum(file.stat().st_blocks * 512 for file in self._memory_dir.glob("slot_*/*"))
        room = _room(self._memory_dir) + held
        slots = min(room // needed, MEMORY_SLOTS)
        self._slots = slots if slots > 1 else 0
        every = interval if self._slots else 0
        self._page.memory = memory = Memory(self._slots, every, needed, room)
        if memory.reduced:
            say(reduced_memory(memory))
        return every

    def take(self, step: int, groups: Groups, common: Mapping[str, Any], hold: Why | None) -> bool:
        """Write the snapshot of `step`; `hold` keeps it for the saver, and says why. False: there is none."""
        number = self._vacate() if self._slots or hold is not None else None
        if number is None:
            return False
        try:
            self._write(self._directory(number), groups, self._common(step, groups, common, hold))
        except OSError as error:
            if error.errno not in _FULL:
                raise
            say(f"there is no room for a snapshot of step {step} in {self._memory_dir}: {error.strerror}")
            self._slots = 0  # what is saved from here on is written to storage
            return hold is not None and number != STAGED and self.take(step, groups, common, hold)
        self._page.set_slot(number, step)
        self.newest = step
        self._page.q[words.TAKEN] = step + 1
        if hold is not None:
            self._page.hold_for_saver(step, hold)
        return True

    def missed(self, step: int) -> None:
        """The snapshot of `step` was to be held, and is not there."""
        self._page.q[words.MISSED] = step + 1

    def slot_files(self, step: int) -> tuple[dict[str, int], bytes]:
        """See shard_saver.HeldSnapshots. Raises LookupError, OSError."""
        steps = self._page.slot_steps()
        if step not in steps:
            raise LookupError(f"no slot holds step {step}")
        directory = layout.slot_dir(self._memory_dir, self._rank, steps.index(step))
        held = ExitStack()
        files = {}
        for group in layout.GROUPS:
            files[group] = os.open(layout.slot_file(directory, group), os.O_RDONLY | os.O_CLOEXEC)
            held.callback(os.close, files[group])
        self._open.append(held)
        while len(self._open) > 1:  # the save before this one is over
            self._open.pop(0).close()
        return files, (directory / layout.COMMON).read_bytes()

    def _vacate(self) -> int | None:
        """Wait for a slot that may be written over, and withdraw its step; None where this rank is told to leave."""
        page, free = self._page, list[int]()

        def ready() -> bool:
            nonlocal free
            steps = page.slot_steps()
            busy = {page.reading} | ({page.save_step} if page.save_step > page.saved else set())
            exists = [layout.slot_dir(self._memory_dir, self._rank, one).exists() for one in range(len(steps))]
            newest = steps.index(self.newest) if self.newest != NONE and self.newest in steps else NONE
            policy = SlotPolicy(steps, exists, newest, busy - {NONE})
            free = policy.free(policy.used(self._slots), NONE)
            return page.leave or bool(free)

        while wait_until(ready, math.inf) and free:
            number, before = free[0], page.slot_steps()[free[0]]
            page.set_slot(number, NONE)
            if page.reading == before != NONE:
                page.set_slot(number, before)  # the saver has just chosen it
                continue
            return number
        return None

    def _directory(self, number: int) -> Path:
        directory = layout.slot_dir(self._memory_dir, self._rank, number)
        if number == STAGED and not directory.is_symlink():
            target = self._storage / directory.name
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.symlink_to(target)
        directory.mkdir(mode=0o700, exist_ok=True)
        return directory

    @staticmethod
    def _write(directory: Path, groups: Groups, common: bytes) -> None:
        for group in layout.GROUPS:
            arrays.write(layout.slot_file(directory, group), groups[group])
        (directory / layout.COMMON).write_bytes(common)

    def _common(self, step: int, groups: Groups, common: Mapping[str, Any], hold: Why | None) -> bytes:
        health = health_mark.mark(health_mark.UNKNOWN, "its parameters were not looked at")
        if hold is not None:
            bad = next((key for key, array in groups["model"].items() if not _is_finite(array)), None)
            health = health_mark.mark(health_mark.NORMAL)
            if bad is not None:
                health = health_mark.mark(health_mark.ABNORMAL, f"{bad} is not finite")
        return json.dumps({"step": step, health_mark.KEY: health, **common}).encode()


def _is_finite(array: Array) -> bool:
    wide = array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    return wide.dtype.kind != "f" or bool(np.isfinite(wide).all())


def _room(directory: Path) -> int:
    """Bytes that snapshots may take besides those they take; a tenth of the file system is left to others."""
    disk = os.statvfs(directory)
    free = max(disk.f_bavail - disk.f_blocks // 10, 0) * disk.f_frsize if disk.f_blocks else 1 << 60
    return min([free, *(max(pool.available - pool.limit // 20, 0) for pool in pools())])

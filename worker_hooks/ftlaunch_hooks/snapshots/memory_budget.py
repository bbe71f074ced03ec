"""Is there room in memory for the snapshots? The ranks agree on what to do where there is little.

Three slots where there is room; two, and then a crash while a copy runs beside a save costs the steps since the
one that is being saved; one, which is overwritten where it lies, so that a crash during the copy goes back to
storage; none, and then only what is for the saver is laid down, on storage. Rank 0 decides from what every rank
needs, all the others follow. Nothing is tried in vain: writing to tmpfs past its end would be SIGBUS, so what is
needed is reserved first (slot.py), and where that fails the ranks meet again, one rung down.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ftlaunch_contract.pages.memory_state import Memory, reduced_memory
from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_contract.pages.words import (
    AGREED,
    AGREED_BASE,
    AGREED_SLOTS,
    ASKED,
    HELD,
    MISSED,
    NEED,
    SIZED,
    TAKEN,
)
from ftlaunch_contract.protocol import MEMORY_SLOTS
from ftlaunch_hooks.process.say import say

_GREW, _FAILED = 1, 2
_ONE_SLOT = 10  # steps between snapshots, at least, where each destroys the one before


class MemoryBudget:
    """What a rank knows, says and is told about the memory for snapshots."""

    def __init__(self, rank: int, peers: Sequence[Page], directory: Path) -> None:
        """peers: the pages of all ranks, this one's included. directory: where the slots lie."""
        self.slots = MEMORY_SLOTS  # how many of them are in memory; 0: the one on storage is used
        self._page, self._leads, self._peers = peers[rank], rank == 0, peers
        self._directory = directory
        self._planned = self._asked = 0
        self._most = MEMORY_SLOTS

    # --- between meetings ---------------------------------------------------------------------------------

    def took(self, step: int) -> None:
        """This rank has a snapshot of `step`, the newest; NONE: of no step."""
        self._page.q[TAKEN] = step + 1

    def all_have(self, step: int) -> bool:
        """Whether every rank has taken the snapshot of `step`."""
        attempt = self._page.attempt
        return all(peer.attempt == attempt and peer.q[TAKEN] > step for peer in self._peers)

    def noticed(self, need: int) -> None:
        """A snapshot of this rank needs `need` bytes now: more than was agreed on is something to meet about."""
        if 0 < self._planned < need:
            self._page.q[ASKED] |= _GREW

    def failed(self) -> None:
        """This rank finds no room for a snapshot: there are none until the ranks have met."""
        self._page.q[ASKED] |= _FAILED

    def any_failed(self) -> bool:
        """Whether a rank waits for a meeting, and takes no snapshots."""
        return any(peer.q[ASKED] & _FAILED for peer in self._peers)

    def missed(self, step: int) -> None:
        """This rank has no snapshot of a step that was to be held for the saver: it will not be saved."""
        self._page.q[MISSED] = step + 1

    def any_missed(self, step: int) -> bool:
        """Whether a rank has no snapshot of a step that was to be held."""
        return any(peer.q[MISSED] > step and peer.save_step != step for peer in self._peers)

    def wanted(self) -> bool:
        """Whether a rank has asked for a meeting."""
        return any(peer.q[ASKED] for peer in self._peers)

    def spaced(self, interval: int) -> int:
        """Rank 0: the interval there is where `interval` was asked for; the supervisor is told of it."""
        self._asked, every = interval, _spaced(interval, self.slots)
        memory = self._page.memory
        if memory.interval != every:
            self._page.memory = memory._replace(interval=every)
        return every

    # --- the meeting --------------------------------------------------------------------------------------

    def meet(self, step: int, need: int, held: int) -> int | None:
        """All ranks at the boundary of `step`, no copy under way: agree on `slots`.

        need: bytes of one snapshot of this rank. held: bytes its slots take already. Returns the newest step
        that all ranks have whole in memory, or NONE; None when this rank is told to leave meanwhile.
        """
        words, attempt = self._page.q, self._page.attempt
        words[NEED], words[HELD] = need, held
        words[SIZED] = step + 1
        leader = self._peers[0]
        if self._leads:
            if not self._wait(lambda: all(p.attempt == attempt and p.q[SIZED] == step + 1 for p in self._peers)):
                return None
            self._decide(step)
        if not self._wait(lambda: leader.attempt == attempt and leader.q[AGREED] == step + 1):
            return None
        self.slots, self._planned = leader.q[AGREED_SLOTS], need
        words[ASKED] = 0
        return leader.q[AGREED_BASE] - 1

    def _wait(self, ready: Callable[[], bool]) -> bool:
        wait_until(lambda: self._page.leave or ready(), math.inf)
        return ready()

    def _decide(self, step: int) -> None:
        if self.any_failed():  # what there seems to be is not to be had
            self._most = max(self.slots - 1, 0)
        needed = sum(peer.q[NEED] for peer in self._peers)
        room = room_in(self._directory) + sum(peer.q[HELD] for peer in self._peers)
        slots = slots_for(needed, room, self._most)
        common = set[int].intersection(*(set(peer.slot_steps()) for peer in self._peers))
        words, memory = self._page.q, self._page.memory
        words[AGREED_SLOTS], words[AGREED_BASE] = slots, max(common | {NONE}) + 1
        self._page.memory = agreed = Memory(slots, _spaced(self._asked, slots), max(needed, 1), room)
        words[AGREED] = step + 1
        if agreed.reduced and (not memory.needed or slots != memory.slots):
            say(reduced_memory(agreed))


def _spaced(interval: int, slots: int) -> int:
    if slots == 1 and interval:
        return max(interval, _ONE_SLOT)
    return interval if slots else 0


def slots_for(needed: int, room: int, most: int) -> int:
    """How many slots of `needed` bytes there is room for, `most` at most."""
    return min(room // needed, most) if needed > 0 else most


def room_in(directory: Path) -> int:
    """Bytes that snapshots may take on the file system of `directory`, now.

    A tenth of it is left to others: the workers of DataLoaders have their batches in /dev/shm too, and die of
    SIGBUS when it is full.
    """
    disk = os.statvfs(directory)
    if disk.f_blocks == 0:  # mounted without a limit
        return 1 << 60
    return max((disk.f_bavail - disk.f_blocks // 10) * disk.f_frsize, 0)

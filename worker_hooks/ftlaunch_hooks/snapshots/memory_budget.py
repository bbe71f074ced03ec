"""How many snapshot slots there is room for in memory. Rank 0 decides from what every rank needs; all follow.

"Rank 0" and "all ranks" are those of this node: the node's first rank leads, and other nodes have memory of their own.

With three slots a crash costs no step. With two, a crash while a copy runs beside a save costs the steps since the
one that is being saved. A single slot is overwritten where it lies: a crash during the copy goes back to storage.
With none, only the snapshots that are for the saver are written, to storage. Writing to tmpfs past its end would be
SIGBUS, so a slot's memory is reserved before it is written to (slot_file.py). Where that fails, the ranks agree
again, on one slot less.

A slot takes memory of the machine and of the job's cgroup, too, whatever the file system says. Where that becomes
short, the ranks agree again, before the kernel kills one of them.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ftlaunch_contract.files.memory_pools import MemoryPool, pools
from ftlaunch_contract.pages.memory_state import Memory, reduced_memory
from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_contract.pages.words import AGREED, AGREED_BASE, AGREED_SLOTS, HELD, NEED, SIZED
from ftlaunch_contract.protocol import MEMORY_SLOTS, PEER_SLOTS
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.snapshots.peer_progress import PeerProgress

_LOOK_NS = 1_000_000_000  # nanoseconds between looks at the memory that is left, at least
_LOOK_SHARE = 2_000  # times as long as a look took, at least, lie between two
_UNLIMITED = 1 << 60
_GROWTH = 16  # one part in so many: how much more than it needs a snapshot may take before the ranks agree anew
_ONE_SLOT = 10  # steps between snapshots, at least, where each destroys the one before


class MemoryBudget:
    """The memory for snapshots, as one rank knows it."""

    def __init__(self, rank: int, peers: Sequence[Page], directory: Path, first: int = 0) -> None:
        """peers: the pages of the node's ranks, from the rank `first` on. directory: where the slots lie."""
        self._most = PEER_SLOTS if peers[rank - first].peer_every else MEMORY_SLOTS
        self.slots = self._most  # how many of them are in memory; 0: the one on storage is used
        self.progress = PeerProgress(rank, peers, first)
        self._page, self._leads, self._peers = peers[rank - first], rank == first, peers
        self._directory = directory
        self._planned = self._asked = 0
        self.look_ns = 0  # monotonic time at which `spaced` looks again at the memory that is left
        self._tight = False

    def noticed(self, need: int) -> None:
        """A snapshot of this rank needs `need` bytes now: the ranks agree anew when that is much more than was planned.

        A state that grows a little at every step must not have them agree at every step.
        """
        if 0 < self._planned < need:
            self.progress.grew()

    def spaced(self, interval: int) -> int:
        """Rank 0: the interval that the memory allows where `interval` was asked for; the page tells the supervisor.

        Now and then it looks whether memory has become short: call it again once it is `look_ns`.
        """
        self._look_at_memory()
        self._asked, every = interval, self.allowed(interval)
        memory = self._page.memory
        if memory.interval != every:
            self._page.memory = memory._replace(interval=every)
        return every

    def allowed(self, interval: int) -> int:
        """The interval that the memory allows where `interval` was asked for."""
        return _spaced(interval, self.slots)

    def _look_at_memory(self) -> None:
        now = time.monotonic_ns()
        if now < self.look_ns:
            return
        before = self._tight
        if self.slots:
            self._tight = is_tight(pools())
        ended = time.monotonic_ns()
        self.look_ns = ended + max(_LOOK_NS, _LOOK_SHARE * (ended - now))
        if self._tight and not before:
            self.progress.grew()

    def agree(self, step: int, need: int, held: int) -> int | None:
        """All ranks at the boundary of `step`, no copy under way: agree on `slots`.

        need: bytes of one snapshot of this rank. held: bytes its slots take already. Returns the newest step
        that all ranks have whole in memory, or NONE; None when this rank is told to leave meanwhile, or another rank
        has left its loop before.
        """
        words, attempt = self._page.q, self._page.attempt
        words[NEED], words[HELD] = need, held
        words[SIZED] = step + 1
        leader = self._peers[0]
        if self._leads:
            if not self._wait(step, lambda: all(p.attempt == attempt and p.q[SIZED] == step + 1 for p in self._peers)):
                return None
            self._decide(step)
        if not self._wait(step, lambda: leader.attempt == attempt and leader.q[AGREED] == step + 1):
            return None
        self.slots, self._planned = leader.q[AGREED_SLOTS], need + need // _GROWTH
        self.progress.agreed()
        return leader.q[AGREED_BASE] - 1

    def _wait(self, step: int, ready: Callable[[], bool]) -> bool:
        wait_until(lambda: self._page.leave or ready() or self.progress.left_before(step) is not None, math.inf)
        return ready()

    def _decide(self, step: int) -> None:
        """Rank 0: write the agreement into its page, AGREED last."""
        if self.progress.any_failed():  # statvfs promised memory that could not be had
            self._most = max(self.slots - 1, 0)
        needed = sum(peer.q[NEED] for peer in self._peers)
        held = sum(peer.q[HELD] for peer in self._peers)
        room = min(room_in(self._directory) + held, memory_for(pools(), held))
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
        return _UNLIMITED
    return max((disk.f_bavail - disk.f_blocks // 10) * disk.f_frsize, 0)


def memory_for(found: Sequence[MemoryPool], held: int) -> int:
    """Bytes that snapshots may take of memory, of which they take `held` already. Pure.

    A twentieth of each pool is left to the job itself, which may still grow. A hundredth is always there for snapshots:
    to give up less than that would save nobody.
    """
    return min((max(p.available + held - p.limit // 20, p.limit // 100) for p in found), default=_UNLIMITED)


def is_tight(found: Sequence[MemoryPool]) -> bool:
    """Whether so little memory is left that snapshots should be given up for it. Pure."""
    return any(pool.available < pool.limit // 40 for pool in found)

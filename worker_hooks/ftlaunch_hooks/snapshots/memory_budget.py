"""Decides how many snapshot slots there is room for in memory. Rank 0 decides from what every rank needs; all follow.

In this module "rank 0" and "all ranks" mean this node's: its first rank leads, and other nodes have their own memory.

With three slots a crash costs no step. With two, a crash while a copy runs during a save costs the steps since the
one that is being saved. A single slot is overwritten in place: a crash during the copy goes back to storage. With none,
only the snapshots that are for the saver are written, to storage. Writing past the end of a full tmpfs would be SIGBUS,
so a slot's memory is reserved before it is written to (slot_file.py). Where that fails, the ranks agree again, on one
slot less.

A slot also takes memory of the machine and of the job's cgroup, whatever the file system says. Where that becomes
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

_CHECK_INTERVAL_NS = 1_000_000_000  # least nanoseconds between checks of the memory that is left
_CHECK_INTERVAL_FACTOR = 2_000  # least time between checks, in multiples of a check's own duration
_UNLIMITED = 1 << 60
_GROWTH_DIVISOR = 16  # a snapshot may grow by 1/16 before the ranks agree again
_ONE_SLOT_INTERVAL = 10  # least steps between snapshots where each overwrites the one before


class MemoryBudget:
    """The memory for snapshots, as one rank knows it."""

    def __init__(self, rank: int, peers: Sequence[Page], directory: Path, first: int = 0) -> None:
        """Begin with as many slots as the job can use.

        Args:
            rank: this rank's number in the job.
            peers: the pages of the node's ranks, from the rank `first` on.
            directory: where the slots lie.
            first: the number of the node's first rank.
        """
        self._max_slots = PEER_SLOTS if peers[rank - first].peer_every else MEMORY_SLOTS
        self.slots = self._max_slots  # number of slots in memory; 0: the slot on storage is used
        self.progress = PeerProgress(rank, peers, first)
        self._page = peers[rank - first]
        self._leads = rank == first
        self._peers = peers
        self._directory = directory
        self._planned = 0  # bytes that a snapshot of this rank may take before the ranks agree again
        self._asked = 0  # steps between snapshots that rank 0 was asked for
        self.check_at_ns = 0  # monotonic time at which `spaced` checks again how much memory is left
        self._is_tight = False

    @property
    def has_spare_slot(self) -> bool:
        """Whether a snapshot that is begun and given up leaves the one before it in memory."""
        return self.slots > 1

    def noticed(self, need: int) -> None:
        """Compare what a snapshot of this rank needs now, in bytes, with the plan; ask for an agreement if it is more.

        The plan has some room, so that a state that grows a little at every step does not ask at every step.
        """
        if 0 < self._planned < need:
            self.progress.grew()

    def allows(self, held: int, more: int) -> bool:
        """Return whether this rank's slots, which take `held` bytes, may take `more` bytes by the last agreement."""
        return held + more <= self.slots * self._planned

    def spaced(self, interval: int) -> int:
        """Return the interval that the memory allows where `interval` steps were asked for. Only rank 0 calls this.

        The page tells the supervisor the interval. Now and then this checks whether memory has become short: call it
        again at `check_at_ns`.
        """
        self._check_memory()
        self._asked = interval
        every = self.allowed(interval)
        memory = self._page.memory
        if memory.interval != every:
            self._page.memory = memory._replace(interval=every)
        return every

    def allowed(self, interval: int) -> int:
        """Return the interval that the memory allows where `interval` steps were asked for."""
        return _spaced(interval, self.slots)

    def _check_memory(self) -> None:
        now = time.monotonic_ns()
        if now < self.check_at_ns:
            return
        was_tight = self._is_tight
        if self.slots:
            self._is_tight = is_tight(pools())
        ended = time.monotonic_ns()
        self.check_at_ns = ended + max(_CHECK_INTERVAL_NS, _CHECK_INTERVAL_FACTOR * (ended - now))
        if self._is_tight and not was_tight:
            self.progress.grew()

    def agree(self, step: int, need: int, held: int) -> int | None:
        """Agree with all ranks on `slots`. All ranks call this at the boundary of `step`, with no copy under way.

        Args:
            step: the boundary.
            need: bytes of one snapshot of this rank.
            held: bytes that this rank's slots take already.

        Returns:
            The newest step that all ranks have whole in memory, or NONE. None when this rank is told to leave
            meanwhile, or another rank has left its loop before.
        """
        words = self._page.q
        attempt = self._page.attempt
        words[NEED] = need
        words[HELD] = held
        words[SIZED] = step + 1
        leader = self._peers[0]

        def all_have_sized() -> bool:
            return all(peer.attempt == attempt and peer.q[SIZED] == step + 1 for peer in self._peers)

        if self._leads:
            if not self._wait(step, all_have_sized):
                return None
            self._decide(step)
        if not self._wait(step, lambda: leader.attempt == attempt and leader.q[AGREED] == step + 1):
            return None
        self.slots = leader.q[AGREED_SLOTS]
        self._planned = need + need // _GROWTH_DIVISOR
        self.progress.agreed()
        return leader.q[AGREED_BASE] - 1

    def _wait(self, step: int, ready: Callable[[], bool]) -> bool:
        wait_until(lambda: self._page.leave or ready() or self.progress.left_before(step) is not None, math.inf)
        return ready()

    def _decide(self, step: int) -> None:
        """Write the agreement into rank 0's page, AGREED last, because the others wait for that word."""
        if self.progress.any_lacks_room():  # statvfs promised memory that was not to be had
            self._max_slots = max(self.slots - 1, 0)
        needed = sum(peer.q[NEED] for peer in self._peers)
        held = sum(peer.q[HELD] for peer in self._peers)
        room = min(room_in(self._directory) + held, memory_for(pools(), held))
        slots = slots_for(needed, room, self._max_slots)
        common = set[int].intersection(*(set(peer.slot_steps()) for peer in self._peers))
        words = self._page.q
        before = self._page.memory
        words[AGREED_SLOTS] = slots
        words[AGREED_BASE] = max(common | {NONE}) + 1
        agreed = Memory(slots=slots, interval=_spaced(self._asked, slots), needed=max(needed, 1), room=room)
        self._page.memory = agreed
        words[AGREED] = step + 1
        if agreed.reduced and (not before.needed or slots != before.slots):
            say(reduced_memory(agreed))


def _spaced(interval: int, slots: int) -> int:
    if slots == 1 and interval:
        return max(interval, _ONE_SLOT_INTERVAL)
    return interval if slots else 0


def slots_for(needed: int, room: int, most: int) -> int:
    """Return how many slots of `needed` bytes fit into `room` bytes, at most `most`."""
    return min(room // needed, most) if needed > 0 else most


def room_in(directory: Path) -> int:
    """Return the bytes that snapshots may take on the file system of `directory` now.

    A tenth of it is left to others: the workers of DataLoaders have their batches in /dev/shm too, and die of
    SIGBUS when it is full.
    """
    disk = os.statvfs(directory)
    if disk.f_blocks == 0:  # mounted without a limit
        return _UNLIMITED
    return max((disk.f_bavail - disk.f_blocks // 10) * disk.f_frsize, 0)


def memory_for(found: Sequence[MemoryPool], held: int) -> int:
    """Return the bytes that snapshots may take of memory, `held` bytes of which they take already. Pure.

    A twentieth of each pool is left to the job itself, which may still grow. A hundredth is always there for snapshots:
    to give up less than that would save nobody.
    """
    rooms = [max(pool.available + held - pool.limit // 20, pool.limit // 100) for pool in found]
    return min(rooms, default=_UNLIMITED)


def is_tight(found: Sequence[MemoryPool]) -> bool:
    """Whether so little memory is left that snapshots should be given up. Pure."""
    return any(pool.available < pool.limit // 40 for pool in found)

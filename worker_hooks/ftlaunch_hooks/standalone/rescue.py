"""Told to stop, and no step boundary is reached in time: a thread saves the newest step that all ranks have in memory.

One rank saves for all, from their snapshots: a peer may be stuck so that not even its threads run. The rank that
saves is rank 0, or the next one should rank 0 be the one that is stuck.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Protocol

from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import layout, tensor_file, writer
from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_contract.protocol import Why
from ftlaunch_hooks.process.operations import tell_operation
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.standalone import memory_dirs
from ftlaunch_hooks.standalone.peers import Peers
from ftlaunch_hooks.standalone.settings import Settings


class RankMemory(Protocol):
    """Where the snapshots of a node's ranks lie."""

    directory: Path  # of this rank

    def of(self, peer: Page) -> Path:
        """The directory of another rank of the node."""

    def job_over(self) -> None:
        """Nobody will resume from what is in memory."""

    def leave_at_once(self) -> None:
        """This rank ends without its atexit functions, and others of the node may be stuck."""


class Rescue:
    """Ends this process, with what could be saved, unless a boundary is reached within half of the grace."""

    def __init__(self, peers: Peers, settings: Settings, memory: RankMemory, snapshot_lock: threading.Lock) -> None:
        """memory: of this rank. snapshot_lock: is held while a snapshot is taken."""
        self._peers, self._settings, self._memory, self._snapshot_lock = peers, settings, memory, snapshot_lock
        self._boundary_reached = threading.Event()

    def start(self) -> None:
        """Begin to wait for a boundary."""
        threading.Thread(target=self._run, name="ftlaunch-rescue", daemon=True).start()

    def call_off(self) -> None:
        """The boundary to stop at is reached."""
        self._boundary_reached.set()

    def _run(self) -> None:
        """In the rescue thread."""
        page, grace = self._peers.page, self._settings.grace
        if self._boundary_reached.wait(grace / 2):
            return
        page.leave = True  # a main thread that waits for a peer's snapshot lets go of the lock
        turn = self._peers.node.place(self._peers.rank) * grace / 8
        with self._snapshot_lock:
            before = page.granted if page.granted <= page.saved else NONE  # of a save that is over
            if wait_until(lambda: page.granted != before, time.monotonic() + turn):
                wait_until(lambda: page.saved >= page.granted, time.monotonic() + grace)
                code = protocol.EXIT_SAVED if self._stored() != NONE else protocol.EXIT_STOPPED
            elif self._peers.node.whole_job:
                code = self._save_for_all()
            else:  # what the other nodes hold cannot be asked while a rank is stuck
                say("no step boundary was reached: this node leaves, and keeps what it has in memory for a restart")
                code = protocol.EXIT_SAVED if self._stored() != NONE else protocol.EXIT_STOPPED
        self._memory.leave_at_once()
        os._exit(code)

    def _stored(self) -> int:
        """The newest step on storage, or NONE."""
        return max((step for step, _ in layout.list_iterations(self._settings.checkpoint_dir)), default=NONE)

    def _save_for_all(self) -> int:
        """Save what all ranks have in memory, if it is newer than what is stored; returns the exit code."""
        step, stored = self._peers.newest_common(), self._stored()
        for peer in self._peers.pages:
            peer.granted = step
        code = protocol.EXIT_SAVED if stored != NONE else protocol.EXIT_STOPPED
        if step > max(stored, 0):
            say(f"no step boundary was reached: saving step {step} from memory")
            code = self._commit_from_memory(step)
        for peer in self._peers.pages:
            peer.saved = step
            memory_dirs.forget(self._memory.of(peer))  # a peer that is stuck cannot delete its own
        return code

    def _commit_from_memory(self, step: int) -> int:
        target = self._settings.target(step, Why.STOP, self._peers.world_size)
        try:
            writer.prepare(target)
            for rank, peer in enumerate(self._peers.pages):
                slot = layout.slot_dir(self._memory.of(peer), rank, peer.slot_steps().index(step))
                writer.write_shard_of(target, rank, slot)
            path, size = writer.commit(target)
            tell_operation(f"saved step {step} ({target.why}, {size} bytes) to {path}")
        except (OSError, tensor_file.Damaged) as error:
            say(f"cannot save step {step} to {self._settings.checkpoint_dir}: {error}")
            return protocol.EXIT_GIVEN_UP
        return protocol.EXIT_SAVED

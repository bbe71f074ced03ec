"""Saves the newest step that all ranks have in memory if a job is told to stop and reaches no step boundary in time.

This happens in a thread of its own, for jobs without a supervisor. One rank saves for all from their snapshots, because
a peer may be so stuck that not even its threads run. Rank 0 saves, or the next rank if rank 0 itself is stuck.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import layout, tensor_file, writer
from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_contract.protocol import Why
from ftlaunch_hooks.process.operations import log_operation
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.standalone import memory_dirs
from ftlaunch_hooks.standalone.peers import Peers
from ftlaunch_hooks.standalone.settings import Settings


class RankMemory(Protocol):
    """The memory directories with the snapshots of a node's ranks."""

    directory: Path
    """this rank's memory directory"""

    def of(self, peer: Page) -> Path:
        """Return the directory of another rank of the node."""

    def job_over(self) -> None:
        """Note that nothing will resume from the snapshots in memory."""

    def leave_at_once(self) -> None:
        """Delete what this rank may delete: it ends without its atexit functions, and its peers may be stuck."""


class Rescue:
    """Ends this process after a last save, unless a boundary is reached within half of the grace period."""

    def __init__(
        self,
        peers: Peers,
        settings: Settings,
        memory: RankMemory,
        snapshot_lock: threading.Lock,
        follow: Callable[..., None] | None,
    ) -> None:
        """Prepare. The thread is started by `start`.

        Args:
            peers: the ranks of this node.
            settings: the job's settings, with the grace period in seconds.
            memory: this rank's memory.
            snapshot_lock: the lock that the training thread holds while it takes a snapshot.
            follow: has the checkpoint store follow the directory, with `is_last=True`; None on the other ranks.
        """
        self._peers = peers
        self._settings = settings
        self._memory = memory
        self._snapshot_lock = snapshot_lock
        self._follow = follow
        self._boundary_reached = threading.Event()

    def start(self) -> None:
        """Start the thread that waits for a boundary."""
        threading.Thread(target=self._run, name="ftlaunch-rescue", daemon=True).start()

    def call_off(self) -> None:
        """Call the rescue off, because the boundary to stop at is reached."""
        self._boundary_reached.set()

    def _run(self) -> None:
        """Run in the rescue thread: wait for the boundary, then save or wait for the rank that saves, and exit."""
        page = self._peers.page
        grace = self._settings.grace
        if self._boundary_reached.wait(grace / 2):
            return
        page.leave = True  # a main thread that waits for a peer's snapshot releases the lock then
        delay = self._peers.node.place(self._peers.rank) * grace / 8  # seconds; rank 0 saves at once
        with self._snapshot_lock:
            earlier_grant = page.granted if page.granted <= page.saved else NONE  # of a save that is over
            if wait_until(lambda: page.granted != earlier_grant, time.monotonic() + delay):
                wait_until(lambda: page.saved >= page.granted, time.monotonic() + grace)
                code = protocol.EXIT_SAVED if self._has_stored() else protocol.EXIT_STOPPED
            elif self._peers.node.whole_job:
                code = self._save_for_all()
            else:  # the other nodes cannot be asked for their steps while a rank is stuck
                say("no step boundary was reached: this node leaves, and keeps what it has in memory for a restart")
                code = protocol.EXIT_SAVED if self._has_stored() else protocol.EXIT_STOPPED
        self._memory.leave_at_once()
        os._exit(code)

    def _newest_stored(self) -> int:
        """Return the newest step on storage, or NONE."""
        return max((step for step, _ in layout.list_iterations(self._settings.checkpoint_dir)), default=NONE)

    def _has_stored(self) -> bool:
        """Return whether there is a checkpoint to go on from; where nodes upload them, none of this start need be here.

        What is known of those is whether the newest save has gone well.
        """
        leader = self._peers.leader
        return self._newest_stored() != NONE or (leader.saved != NONE and leader.shard_step == leader.saved)

    def _save_for_all(self) -> int:
        """Save the newest step that all ranks have in memory, if it is newer than storage. Return the exit code."""
        step = self._peers.newest_common()
        stored = self._newest_stored()
        for peer in self._peers.pages:
            peer.granted = step
        code = protocol.EXIT_SAVED if stored != NONE else protocol.EXIT_STOPPED
        if step > max(stored, 0):
            say(f"no step boundary was reached: saving step {step} from memory")
            code = self._commit_from_memory(step)
        for peer in self._peers.pages:
            peer.saved = step
            memory_dirs.forget(self._memory.of(peer))  # a stuck peer cannot delete its own directory
        return code

    def _commit_from_memory(self, step: int) -> int:
        """Write and commit a checkpoint of all ranks' snapshots of `step`. Return the exit code."""
        target = self._settings.target(step, Why.STOP, self._peers.world_size)
        try:
            writer.prepare(target)
            for rank, peer in enumerate(self._peers.pages):
                slot = layout.slot_dir(self._memory.of(peer), rank, peer.slot_steps().index(step))
                writer.write_shard_of(target, rank, slot)
            path, size = writer.commit(target)
            log_operation(f"saved step {step} ({target.why}, {size} bytes) to {path}")
        except (OSError, tensor_file.Damaged) as error:
            say(f"cannot save step {step} to {self._settings.checkpoint_dir}: {error}")
            return protocol.EXIT_GIVEN_UP
        if self._follow is not None:
            self._follow(is_last=True)
        elif self._settings.store is not None:
            say(f"rank 0 is stuck: step {step} is on this machine only, and goes to its store at the next start")
        return protocol.EXIT_SAVED

"""Saves one rank's shards, each in a thread beside the training; rank 0 commits once all shards are there."""

from __future__ import annotations

import threading
from typing import Protocol

from ftlaunch_contract.checkpoint import layout, tensor_file, writer
from ftlaunch_contract.files.rate_limit import Bandwidth
from ftlaunch_contract.protocol import Why
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.standalone.leader import NodeLeader, failed
from ftlaunch_hooks.standalone.peers import Peers
from ftlaunch_hooks.standalone.settings import AloneError, Settings


class HeldSnapshots(Protocol):
    """Where the snapshots lie that are held for saving."""

    def slot_files(self, step: int) -> tuple[dict[str, int], bytes]:
        """Descriptors by group (not to be closed) and common.json of a snapshot. Raises LookupError, OSError."""


class ShardSaver:
    """At most one save at a time."""

    def __init__(self, peers: Peers, settings: Settings, leader: NodeLeader | None) -> None:
        """leader: where this rank is rank 0."""
        self._peers, self._settings, self._leader = peers, settings, leader
        self.error: str | None = None  # why the last save has failed
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, snapshots: HeldSnapshots, step: int, why: Why) -> None:
        """Save the snapshot of `step`. The save before it has ended."""
        self._thread = threading.Thread(
            target=self._save, args=(snapshots, step, why), name="ftlaunch-saver", daemon=True
        )
        self._thread.start()

    def hurry(self) -> None:
        """From now on no save keeps to its bandwidth."""
        self._hurry.set()

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the end of the save under way; without end, or so many seconds."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _save(self, snapshots: HeldSnapshots, step: int, why: Why) -> None:
        """In the saver thread."""
        self.error = None
        target = self._settings.target(step, why, self._peers.world_size)
        try:
            self._write(target, why, *snapshots.slot_files(step))
        except (OSError, LookupError, tensor_file.Damaged, AloneError) as error:
            self.error = str(error)
            say(f"rank {self._peers.rank} cannot save step {step} to {self._settings.checkpoint_dir}: {error}")
            if self._leader is not None:
                self._leader.give_up(target)
            else:
                self._peers.page.shard_step = failed(step)

    def _write(self, target: writer.SaveTarget, why: Why, files: dict[str, int], common: bytes) -> None:
        peers, orders, step = self._peers, self._peers.leader, target.step
        if self._leader is not None:
            self._leader.grant(target)
        peers.wait_for_leader(lambda: orders.granted >= step or orders.saved >= step)
        if orders.granted < step:
            raise AloneError("rank 0 could not make room for it")
        writer.write_shard(target, peers.rank, files, common, self._bound(why))
        peers.page.shard_step = step
        if self._leader is not None:
            self._leader.commit(target)
            return
        peers.wait_for_leader(lambda: orders.saved >= step)
        if not layout.iteration_dir(target.checkpoint_dir, step).is_dir():
            raise AloneError("not all ranks could write their shards")

    def _bound(self, why: Why) -> writer.Spent | None:
        """What keeps a save to this rank's part of the bandwidth, where one is set and nobody waits for the save."""
        if not self._settings.bandwidth or why not in (Why.INTERVAL, Why.REQUEST):
            return None
        return Bandwidth(self._settings.bandwidth / self._peers.world_size, self._hurry.wait).spent

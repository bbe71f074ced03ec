"""Saves a rank's shards without a supervisor, each in a thread beside the training.

The leader (leader.py) commits in its own saver thread, once all shards are written.
"""

from __future__ import annotations

import threading
from typing import Protocol

from ftlaunch_contract.checkpoint import tensor_file, writer
from ftlaunch_contract.files.rate_limit import Bandwidth
from ftlaunch_contract.protocol import Why
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.standalone.leader import NodeLeader, failed
from ftlaunch_hooks.standalone.peers import Peers
from ftlaunch_hooks.standalone.settings import AloneError, Settings


class HeldSnapshots(Protocol):
    """The snapshots of this rank that are held until they are saved."""

    def slot_files(self, step: int) -> tuple[dict[str, int], bytes]:
        """Return the files of a snapshot.

        Returns:
            Descriptors by group, which the caller must not close, and the content of common.json.

        Raises:
            LookupError: no slot holds the step.
            OSError: a file cannot be read.
        """


class ShardSaver:
    """Saves this rank's shards, one save at a time."""

    def __init__(self, peers: Peers, settings: Settings, leader: NodeLeader | None) -> None:
        """Prepare. No save is under way.

        Args:
            peers: the ranks of this node.
            settings: the job's settings.
            leader: the leader, if this rank leads its node.
        """
        self._peers = peers
        self._settings = settings
        self._leader = leader
        self.error: str | None = None
        """why the last save has failed; None if it has not"""
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, snapshots: HeldSnapshots, step: int, why: Why) -> None:
        """Save the snapshot of `step` in a new thread. The caller has waited for the end of the previous save."""
        self._thread = threading.Thread(
            target=self._save, args=(snapshots, step, why), name="ftlaunch-saver", daemon=True
        )
        self._thread.start()

    def hurry(self) -> None:
        """Lift the bandwidth limit, of the save under way and of later saves."""
        self._hurry.set()

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the end of the save under way, up to `seconds`; None: without limit."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _save(self, snapshots: HeldSnapshots, step: int, why: Why) -> None:
        """Run in the saver thread: write the shard, and say so if that fails."""
        self.error = None
        target = self._settings.target(step, why, self._peers.world_size)
        try:
            files, common = snapshots.slot_files(step)
            self._write(target, why, files=files, common=common)
        except (OSError, LookupError, tensor_file.Damaged, AloneError) as error:
            self.error = str(error)
            say(f"rank {self._peers.rank} cannot save step {step} to {self._settings.checkpoint_dir}: {error}")
            self._peers.page.shard_step = failed(step)
            if self._leader is not None:
                self._leader.give_up(target)

    def _write(self, target: writer.SaveTarget, why: Why, files: dict[str, int], common: bytes) -> None:
        peers = self._peers
        orders = peers.leader
        step = target.step
        if self._leader is not None:
            self._leader.grant(target)
        peers.wait_for_leader(lambda: orders.granted >= step or orders.saved >= step)
        if orders.granted < step:
            raise AloneError("rank 0 could not make room for it")
        writer.write_shard(target, peers.rank, files=files, common=common, spent=self._bandwidth_limit(why))
        peers.page.shard_step = step
        if self._leader is not None:
            self._leader.commit(target)
            return
        peers.wait_for_leader(lambda: orders.saved >= step)
        if orders.shard_step == failed(step):
            raise AloneError("not all ranks could write their shards, or the checkpoint could not be committed")

    def _bandwidth_limit(self, why: Why) -> writer.Spent | None:
        """Return the limit to this rank's part of the bandwidth, or None.

        There is no limit if none is set, or if something waits for the save.
        """
        if not self._settings.bandwidth or why not in (Why.INTERVAL, Why.REQUEST):
            return None
        return Bandwidth(self._settings.bandwidth / self._peers.world_size, self._hurry.wait).spent

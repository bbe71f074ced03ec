"""No supervisor: the ranks of a node answer to each other, and each saves for itself.

For the same script under torchrun, Slurm or plain `python`. The ranks share their pages (rendezvous.py). At its step
boundaries rank 0 announces where to stop and what to save (leader.py). Every rank saves its own shard, and rank 0
commits (shard_saver.py). Where no boundary is reached in time, because a rank is stuck in a collective, a thread
saves the newest step that all ranks have in memory (rescue.py).
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.files.private_dir import NotPrivate
from ftlaunch_contract.node_ranks import one_node
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import Resume, Why
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.standalone import memory_dirs
from ftlaunch_hooks.standalone.leader import NodeLeader
from ftlaunch_hooks.standalone.peers import Peers
from ftlaunch_hooks.standalone.rendezvous import rendezvous
from ftlaunch_hooks.standalone.rescue import Rescue
from ftlaunch_hooks.standalone.settings import AloneError, Settings, settings
from ftlaunch_hooks.standalone.shard_saver import ShardSaver


def join() -> Standalone:
    """Meet the other ranks of this node. Raises AloneError."""
    rank = int(os.environ.get("RANK", "0"))
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    if local != world_size:
        raise AloneError(
            f"cannot attach: {world_size} ranks on several nodes ({local} here); without a supervisor only the"
            " ranks of one node can agree on a step"
        )
    return Standalone(rank, world_size, settings())


class Standalone:
    """This rank, among its peers: a Coordinator without a supervisor."""

    even = True  # nobody would end the ranks that wait for one that has left its loop
    patience_ns = 0  # rank 0 announces at every boundary

    def __init__(self, rank: int, world_size: int, chosen: Settings) -> None:
        """Meet the other ranks. Raises AloneError."""
        self.rank, self.world_size, self.node = rank, world_size, one_node(world_size)
        self.attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.memory_interval, self.checkpoint_dir = chosen.memory_interval, chosen.checkpoint_dir
        self.storage_slots = layout.storage_slots(chosen.checkpoint_dir, chosen.prefix)
        self.load_path = chosen.load.path if chosen.load is not None else Path()
        self.watched_lock = threading.Lock()
        self._root = protocol.memory_root(os.getuid())
        self.memory_dir = memory_dirs.memory_dir(self._root, os.getpid(), protocol.own_start_time())
        memory_dirs.forget_at_exit(self._root, self.memory_dir)
        self.peers = self._meet()
        self.page, self.orders = self.peers[rank], self.peers[0]
        self._peers = Peers(rank, self.peers)
        self._leader = NodeLeader(self._peers, chosen) if rank == 0 else None
        self._saver = ShardSaver(self._peers, chosen, self._leader)
        self._rescue = Rescue(self._peers, chosen, self._root, self.watched_lock)
        atexit.register(self._at_exit, os.getpid())  # runs before the memory directory is deleted

    def _meet(self) -> list[Page]:
        try:
            memory_dirs.make(self.memory_dir)
            memory_dirs.sweep(self._root)
            return rendezvous(self._root, self.rank, self.world_size, self.attempt)
        except NotPrivate as error:
            raise AloneError(f"cannot attach: {error}") from None
        except OSError as error:
            raise AloneError(f"cannot attach: {error.filename or self._root}: {error.strerror}") from None

    def _at_exit(self, pid: int) -> None:
        if os.getpid() == pid:
            self._saver.wait()
            if self._leader is not None:
                self._leader.leave()

    def resume(self) -> tuple[Resume, int]:
        """Rank 0 looks at storage and tells the others. Raises AloneError."""
        if self._leader is not None:
            self._leader.decide_resume()
        self._peers.wait_for_leader(lambda: self.orders.resume[0] != Resume.UNDECIDED)
        return self.orders.resume

    def at_boundary(self, step: int) -> None:
        """Rank 0 announces what is asked of all ranks; the others only read it."""
        if self._leader is not None:
            self._leader.announce(step)

    def held(self, snapshots: Snapshotter, step: int, why: Why) -> None:
        """Save this rank's shard, beside the training."""
        self._saver.wait()  # the rescue is needed until the save before this one has ended
        if why == Why.STOP:
            self._rescue.call_off()
        self._saver.start(snapshots, step, why)

    def leave(self) -> int:
        """Wait until the checkpoint is committed; 75 when it is."""
        self._saver.wait()
        return protocol.EXIT_SAVED if self._saver.error is None else protocol.EXIT_GIVEN_UP

    def finish(self) -> None:
        """The loop is over: its last step is on storage before the script goes on."""
        self._saver.hurry()
        self._saver.wait()

    def on_term(self, signum: int) -> None:
        """Note the wish to stop, pass it on, and start the rescue in case no boundary is reached."""
        if self.page.stop_wanted:
            return  # a second SIGTERM changes nothing
        self.page.stop_wanted = signum
        self._saver.hurry()
        for peer in self._peers.others():
            if not peer.stop_wanted:
                with suppress(ProcessLookupError):
                    os.kill(peer.pid, signal.SIGTERM)
        self._rescue.start()

    def on_orphaned(self) -> None:
        """Never called: there is no supervisor."""

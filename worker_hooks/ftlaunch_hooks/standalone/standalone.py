"""No supervisor: the ranks of a job answer to each other, and each saves for itself.

For the same script under torchrun, Slurm or plain `python`. The ranks share their pages (rendezvous.py). At its step
boundaries rank 0 announces where to stop and what to save (leader.py). Every rank saves its own shard, and rank 0
commits (shard_saver.py). Where no boundary is reached in time, because a rank is stuck in a collective, a thread
saves the newest step that all ranks have in memory (rescue.py). On several nodes the ranks of each do the same among
themselves, and the first rank of each speaks with those of the other nodes (nodes/).
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.files.private_dir import NotPrivate
from ftlaunch_contract.node_ranks import NodeRanks
from ftlaunch_contract.protocol import Resume, Why
from ftlaunch_contract.saving_request import SavingRequest
from ftlaunch_hooks.standalone import memory_dirs
from ftlaunch_hooks.standalone.leader import NodeLeader
from ftlaunch_hooks.standalone.peers import Peers
from ftlaunch_hooks.standalone.rendezvous import meet_in, rendezvous
from ftlaunch_hooks.standalone.rescue import RankMemory, Rescue
from ftlaunch_hooks.standalone.settings import AloneError, Settings, settings
from ftlaunch_hooks.standalone.shard_saver import HeldSnapshots, ShardSaver


def join() -> Standalone:
    """Meet the other ranks of the job. Raises AloneError."""
    rank = int(os.environ.get("RANK", "0"))
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    try:
        node = NodeRanks(rank - int(os.environ.get("LOCAL_RANK", rank)), local, world_size)
    except ValueError as error:
        raise AloneError(f"cannot attach: {error}") from None
    return Standalone(rank, node, settings())


class Standalone:
    """This rank, among its peers: a Coordinator without a supervisor."""

    is_supervised = False
    even = True  # nobody would end the ranks that wait for one that has left its loop
    patience_ns = 0  # rank 0 announces at every boundary

    def __init__(self, rank: int, node: NodeRanks, chosen: Settings) -> None:
        """Meet the other ranks. Raises AloneError."""
        self.rank, self.world_size, self.node = rank, node.world_size, node
        self.attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.memory_interval, self.checkpoint_dir = chosen.memory_interval, chosen.checkpoint_dir
        self.storage_slots = layout.storage_slots(chosen.checkpoint_dir, chosen.prefix)
        self.load_path = chosen.load.path if chosen.load is not None else Path()
        self.watched_lock = threading.Lock()
        root = protocol.memory_root(os.getuid())
        try:
            self._meet(root, chosen)
        except NotPrivate as error:
            raise AloneError(f"cannot attach: {error}") from None
        except OSError as error:
            raise AloneError(f"cannot attach: {error.filename or root}: {error.strerror}") from None
        self.memory_dir = self._memory.directory
        self.page, self.orders = self.peers[node.place(rank)], self.peers[0]
        self._saver = ShardSaver(self._peers, chosen, self._leader)
        self._rescue = Rescue(self._peers, chosen, self._memory, self.watched_lock)
        self._is_finished = False
        self._exit_patience = None if node.whole_job else chosen.grace
        atexit.register(self._at_exit, os.getpid())  # runs before the memory directory is deleted

    def _meet(self, root: Path, chosen: Settings) -> None:
        rank, node = self.rank, self.node
        self._memory: RankMemory
        self._leader: NodeLeader | None = None
        if node.whole_job:
            self._memory = memory_dirs.ProcessMemory(root)
            self.peers = rendezvous(root, rank, node.count, self.attempt)
            self._peers = Peers(rank, self.peers, node)
            if rank == node.first:
                self._leader = NodeLeader(self._peers, chosen)
            return
        self._meet_nodes(root, chosen)

    def _meet_nodes(self, root: Path, chosen: Settings) -> None:
        # the first ranks of the nodes speak over torch.distributed; the ranks of a single node may have no torch
        from ftlaunch_hooks.standalone.nodes.links import Links  # noqa: PLC0415
        from ftlaunch_hooks.standalone.nodes.node_memory import NodeMemory  # noqa: PLC0415
        from ftlaunch_hooks.standalone.nodes.nodes_leader import NodesLeader  # noqa: PLC0415

        rank, node = self.rank, self.node
        self._memory = memory = NodeMemory(root, node)
        self.peers = meet_in(memory.directory, rank, node.ranks, self.attempt)
        self._peers = Peers(rank, self.peers, node)
        links = Links(node)
        if rank == node.first:
            self._leader = NodesLeader(self._peers, chosen, memory, links)

    def _at_exit(self, pid: int) -> None:
        if os.getpid() == pid:
            self._saver.wait(self._exit_patience)
            if self._leader is not None:
                self._leader.leave(is_finished=self._is_finished)

    def resume(self) -> tuple[Resume, int]:
        """The first rank of the node decides, once, with those of other nodes, and tells the others.

        Raises AloneError.
        """
        if self._leader is not None and self.orders.resume[0] == Resume.UNDECIDED:
            self._leader.decide_resume()
        self._peers.wait_for_leader(lambda: self.orders.resume[0] != Resume.UNDECIDED)
        return self.orders.resume

    def at_boundary(self, step: int) -> None:
        """Rank 0 announces what is asked of all ranks; the others only read it."""
        self._is_finished = False  # another training follows in this process
        if self._leader is not None:
            self._leader.announce(step)

    def save_as(self, request: SavingRequest) -> None:
        """The node's first rank: keep so many checkpoints; the intervals of the environment hold no more."""
        if self._leader is not None:
            self._leader.save_as(request)

    def held(self, snapshots: HeldSnapshots, step: int, why: Why) -> None:
        """Save this rank's shard, beside the training."""
        self._saver.wait()  # the rescue is needed until the save before this one has ended
        if why == Why.STOP:
            self._rescue.call_off()
        self._saver.start(snapshots, step, why)

    def leave(self) -> int:
        """Wait until the checkpoint is committed; 75 when it is."""
        return protocol.EXIT_SAVED if self._saved() else protocol.EXIT_GIVEN_UP

    def leave_at_once(self) -> NoReturn:
        """End this process with what `leave` returns; its memory directory goes with it."""
        code = self.leave()
        sys.stdout.flush()
        self._memory.leave_at_once()
        os._exit(code)

    def _saved(self) -> bool:
        """Wait for the end of the save under way; whether it is on storage."""
        self._saver.wait()
        if self._saver.error is not None:
            return False
        self._memory.job_over()
        return True

    def finish(self) -> None:
        """The loop is over: its last step is on storage before the script goes on."""
        self._saver.hurry()
        self._is_finished = self._saved()
        if self._leader is not None:
            self._leader.settle()

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

"""Coordinates a rank with its peers in a job without a supervisor.

This serves scripts under torchrun, Slurm or plain `python`. The ranks share their pages (rendezvous.py). Rank 0
announces at its step boundaries where to stop and what to save (leader.py). Every rank saves its own shard, and rank 0
commits (shard_saver.py). If no boundary is reached in time, because a rank is stuck in a collective, a thread saves the
newest step that all ranks have in memory (rescue.py). On several nodes the ranks of each node do all this among
themselves, and the first ranks of the nodes talk to each other (nodes/).

The job (job/job.py) calls a `Standalone` in the thread that trains, except `on_term`, which the signal watcher's thread
calls.
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
    """Meet the other ranks of the job, by the launcher's environment.

    Raises:
        AloneError: the environment is not valid, not all ranks come, or a directory cannot be used.
    """
    rank = int(os.environ.get("RANK", "0"))
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    try:
        node = NodeRanks(rank - int(os.environ.get("LOCAL_RANK", rank)), local, world_size)
    except ValueError as error:
        raise AloneError(f"cannot attach: {error}") from None
    return Standalone(rank, node, settings())


class Standalone:
    """The Coordinator (job/coordinator.py) of a rank in a job without a supervisor."""

    is_supervised = False
    even = True  # nothing would end ranks that wait for a rank that has left its loop
    patience_ns = 0  # rank 0 announces at every boundary

    def __init__(self, rank: int, node: NodeRanks, chosen: Settings) -> None:
        """Meet the other ranks.

        Args:
            rank: this rank's number in the job.
            node: the ranks of this node.
            chosen: the job's settings.

        Raises:
            AloneError: not all ranks come, or a directory cannot be used.
        """
        if chosen.store is not None and not node.whole_job:
            chosen = chosen.of_node(node.first // node.count)
        self.rank = rank
        self.world_size = node.world_size
        self.node = node
        self.attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.memory_interval = chosen.memory_interval
        self.checkpoint_dir = chosen.checkpoint_dir
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
        self.page = self.peers[node.place(rank)]
        self.orders = self.peers[0]
        self._saver = ShardSaver(self._peers, chosen, self._leader)
        stored = None if self._leader is None else self._leader.follow
        self._rescue = Rescue(self._peers, chosen, self._memory, self.watched_lock, stored)
        self._is_finished = False
        self._exit_patience = None if node.whole_job else chosen.grace
        atexit.register(self._at_exit, os.getpid())  # runs before the memory directory is deleted

    def _meet(self, root: Path, chosen: Settings) -> None:
        rank = self.rank
        node = self.node
        self._memory: RankMemory
        self._leader: NodeLeader | None = None
        if node.whole_job:
            self._memory = memory_dirs.ProcessMemory(root)
            self.peers = rendezvous(root, rank, world_size=node.count, attempt=self.attempt)
            self._peers = Peers(rank, self.peers, node)
            if rank == node.first:
                self._leader = NodeLeader(self._peers, chosen)
            return
        self._meet_nodes(root, chosen)

    def _meet_nodes(self, root: Path, chosen: Settings) -> None:
        # The first ranks of the nodes talk over torch.distributed. Imported here, as one node's ranks may lack torch.
        from ftlaunch_hooks.standalone.nodes.links import Links  # noqa: PLC0415
        from ftlaunch_hooks.standalone.nodes.node_memory import NodeMemory  # noqa: PLC0415
        from ftlaunch_hooks.standalone.nodes.nodes_leader import NodesLeader  # noqa: PLC0415
        from ftlaunch_hooks.standalone.nodes.stored_nodes_leader import StoredNodesLeader  # noqa: PLC0415

        rank = self.rank
        node = self.node
        memory = NodeMemory(root, node)
        self._memory = memory
        self.peers = meet_in(memory.directory, rank, ranks=node.ranks, attempt=self.attempt)
        self._peers = Peers(rank, self.peers, node)
        links = Links(node)
        if rank == node.first:
            kind = NodesLeader if chosen.store is None else StoredNodesLeader
            self._leader = kind(self._peers, settings=chosen, memory=memory, links=links)

    def _at_exit(self, pid: int) -> None:
        if os.getpid() == pid:
            self._saver.wait(self._exit_patience)
            if self._leader is not None:
                self._leader.leave(is_finished=self._is_finished)

    def resume(self) -> tuple[Resume, int]:
        """Return where to resume, which the node's first rank decides once, together with those of other nodes.

        Returns:
            The kind of the resume and its step.

        Raises:
            AloneError: the job cannot resume, or the first rank is gone.
        """
        if self._leader is not None and self.orders.resume[0] == Resume.UNDECIDED:
            self._leader.decide_resume()
        self._peers.wait_for_leader(lambda: self.orders.resume[0] != Resume.UNDECIDED)
        return self.orders.resume

    def at_boundary(self, step: int) -> None:
        """Announce stops and saves, if this rank leads its node; the other ranks only read announcements.

        Args:
            step: the number of completed steps.
        """
        self._is_finished = False  # another training follows in this process
        if self._leader is not None:
            self._leader.announce(step)

    def save_as(self, request: SavingRequest) -> None:
        """Save as the script asks, if this rank leads its node. The request replaces settings of the environment."""
        if self._leader is not None:
            self._leader.save_as(request)

    def held(self, snapshots: HeldSnapshots, step: int, why: Why) -> None:
        """Start to save this rank's shard of `step` beside the training, once the previous save has ended."""
        self._saver.wait()  # the rescue is needed until the previous save has ended
        if why == Why.STOP:
            self._rescue.call_off()
        self._saver.start(snapshots, step, why)

    def leave(self) -> int:
        """Wait until the save is over. Return the exit code: 75 if the checkpoint is committed, 1 if it is not."""
        return protocol.EXIT_SAVED if self._has_saved() else protocol.EXIT_GIVEN_UP

    def leave_at_once(self) -> NoReturn:
        """End this process with the code of `leave`, without atexit functions. Delete its memory directory."""
        code = self.leave()
        sys.stdout.flush()
        self._memory.leave_at_once()
        os._exit(code)

    def _has_saved(self) -> bool:
        """Wait for the end of the save under way. Return whether the checkpoint is on storage."""
        self._saver.wait()
        if self._saver.error is not None:
            return False
        self._memory.job_over()
        return True

    def finish(self) -> None:
        """Wait at the end of the loop until its last step is on storage."""
        self._saver.hurry()
        if self._leader is not None:
            self._leader.hurry()
        self._is_finished = self._has_saved()
        if self._leader is not None:
            self._leader.settle()

    def on_term(self, signum: int) -> None:
        """Note the wish to stop, pass it on to the peers, and start the rescue in case no boundary is reached.

        Runs in the signal watcher's thread.

        Args:
            signum: the signal's number.
        """
        if self.page.stop_wanted:
            return  # a second SIGTERM changes nothing
        self.page.stop_wanted = signum
        self._saver.hurry()
        if self._leader is not None:
            self._leader.hurry()
        for peer in self._peers.others():
            if not peer.stop_wanted:
                with suppress(ProcessLookupError):
                    os.kill(peer.pid, signal.SIGTERM)
        self._rescue.start()

    def on_orphaned(self) -> None:
        """Do nothing: a job without a supervisor cannot lose it, and nothing calls this method."""

"""Keeps the pages and snapshots of a node's ranks under torchrun, so that ranks that are started again find them.

The memory directory belongs to the agent (torchrun's process, the parent of the ranks) and is named after the agent.
Ranks that the same agent starts again find what the previous ranks held; ranks of another agent never do.
"""

from __future__ import annotations

import atexit
import os
from contextlib import suppress
from pathlib import Path

from ftlaunch_contract import protocol
from ftlaunch_contract.files import held_dir
from ftlaunch_contract.files.private_dir import make_private
from ftlaunch_contract.node_ranks import NodeRanks
from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_hooks.standalone import memory_dirs
from ftlaunch_hooks.standalone.nodes.agreement import NO_LINEAGE

_LINEAGE = "lineage"


class NodeMemory:
    """The memory directory of a node, held by every rank of the node."""

    def __init__(self, root: Path, node: NodeRanks) -> None:
        """Make the directory in `root`, or find it there, and hold it. Delete directories of agents that are gone.

        Raises:
            NotPrivate: other users may write to the directory.
            OSError: the directory cannot be made.
        """
        self._root = root
        self._node = node
        agent = os.getppid()
        started = protocol.process_start_time(agent)
        self.directory = root / f"agent-{agent}-{started}-{held_dir.pid_namespace()}"
        self._fd = held_dir.hold(self.directory, lambda: make_private(self.directory), shared=True)
        os.register_at_fork(after_in_child=lambda: os.close(self._fd))
        self._over = not _may_restart()
        atexit.register(self._at_exit, os.getpid())
        sweep(root)

    def of(self, peer: Page) -> Path:
        """Return the directory of a rank of the node, which is the same for all."""
        return self.directory

    # --- lineage ----------------------------------------------------------------------------------------------

    def lineage(self) -> int:
        """Return the lineage of the steps in memory; NO_LINEAGE if there is none, or if it belongs to other ranks."""
        with suppress(OSError, ValueError):
            number, first, count, world_size = map(int, (self.directory / _LINEAGE).read_text().split())
            if NodeRanks(first, count, world_size) == self._node:
                return number
        return NO_LINEAGE

    def begin_lineage(self, number: int, base: int, pages: list[Page]) -> None:
        """Begin a lineage while all ranks of the node wait to resume.

        Args:
            number: the lineage's number.
            base: the step in memory that belongs to the lineage; NONE: no step does. Other steps are dropped.
            pages: the pages of the node's ranks.

        Raises:
            OSError: the lineage cannot be written.
        """
        for page in pages:
            for slot, step in enumerate(page.slot_steps()):
                if step != base or base == NONE:
                    page.set_slot(slot, NONE)
        fresh = self.directory / f"{_LINEAGE}.new"
        fresh.write_text(f"{number} {self._node.first} {self._node.count} {self._node.world_size}")
        fresh.rename(self.directory / _LINEAGE)

    # --- the end ----------------------------------------------------------------------------------------------

    def job_over(self) -> None:
        """Note that nothing will resume from this memory, so that the last rank that leaves deletes it."""
        self._over = True

    def leave_at_once(self) -> None:
        """Delete the directory now if the job is over. All ranks of the node end, and a stuck rank deletes nothing."""
        if self._over:
            memory_dirs.forget(self.directory)

    def _leave(self) -> None:
        """Release the directory, and delete it if the job is over and no other rank holds it."""
        os.close(self._fd)
        if self._over:
            _delete_abandoned(self.directory)
            with suppress(OSError):
                self._root.rmdir()

    def _at_exit(self, pid: int) -> None:
        if os.getpid() == pid:
            self._leave()


def sweep(root: Path) -> None:
    """Delete the directories of agents of this PID namespace that are gone."""
    for directory in root.glob(f"agent-*-*-{held_dir.pid_namespace()}"):
        _, agent, started, _ = directory.name.split("-")
        if protocol.process_start_time(int(agent)) != int(started):
            _delete_abandoned(directory)


def _delete_abandoned(directory: Path) -> None:
    fd = held_dir.claim_abandoned(directory)
    if fd is not None:
        memory_dirs.forget(directory)
        os.close(fd)


def _may_restart() -> bool:
    """Return whether torchrun would start these ranks again if they failed."""
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    max_restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    return restarts < max_restarts

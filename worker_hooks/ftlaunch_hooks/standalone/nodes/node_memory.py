"""The memory of a node under torchrun: pages and snapshots of its ranks, which outlive them for a restart.

The directory belongs to the agent (torchrun's process, the parent of the ranks) and is named after it: the ranks that
the same agent starts again find what the ranks before them held. Ranks of another agent never do.
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
    """The directory, held by every rank of the node."""

    def __init__(self, root: Path, node: NodeRanks) -> None:
        """Make and hold it. Raises NotPrivate or OSError."""
        self._root, self._node = root, node
        agent = os.getppid()
        started = protocol.process_start_time(agent)
        self.directory = root / f"agent-{agent}-{started}-{held_dir.pid_namespace()}"
        self._fd = held_dir.hold(self.directory, lambda: make_private(self.directory), shared=True)
        os.register_at_fork(after_in_child=lambda: os.close(self._fd))
        self._over = not _may_restart()
        atexit.register(self._at_exit, os.getpid())
        sweep(root)

    def of(self, peer: Page) -> Path:
        """The directory of a rank of the node: the same for all."""
        return self.directory

    # --- lineage ----------------------------------------------------------------------------------------------

    def lineage(self) -> int:
        """The lineage of the steps in memory; NO_LINEAGE where there is none, or where other ranks were here before."""
        with suppress(OSError, ValueError):
            number, first, count, world_size = map(int, (self.directory / _LINEAGE).read_text().split())
            if NodeRanks(first, count, world_size) == self._node:
                return number
        return NO_LINEAGE

    def begin_lineage(self, number: int, base: int, pages: list[Page]) -> None:
        """All ranks of the node resume, and wait: of what is in memory only `base` (or nothing: NONE) belongs to it.

        Raises OSError.
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
        """Nobody will resume from this memory: the last rank that leaves deletes it."""
        self._over = True

    def leave_at_once(self) -> None:
        """This rank ends, as all ranks of the node do; one that is stuck cannot delete anything."""
        if self._over:
            memory_dirs.forget(self.directory)

    def _leave(self) -> None:
        """This rank ends."""
        os.close(self._fd)
        if self._over:
            _delete_abandoned(self.directory)
            with suppress(OSError):
                self._root.rmdir()

    def _at_exit(self, pid: int) -> None:
        if os.getpid() == pid:
            self._leave()


def sweep(root: Path) -> None:
    """Delete what belonged to agents of this PID namespace that are gone."""
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
    """Whether torchrun would start these ranks again."""
    environ = os.environ
    count, most = environ.get("TORCHELASTIC_RESTART_COUNT", "0"), environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    return int(count) < int(most)

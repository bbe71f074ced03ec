"""What a Job needs of whoever decides for its rank: the supervisor (supervised.py), or the ranks of the node among
themselves (standalone.py).
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NoReturn, Protocol

from ftlaunch_contract.node_ranks import NodeRanks
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import MemoryInterval, Resume, Why
from ftlaunch_contract.saving_request import SavingRequest
from ftlaunch_hooks.standalone.shard_saver import HeldSnapshots


class Coordinator(Protocol):
    """What decides where a rank resumes, stops and saves."""

    is_supervised: bool  # a supervisor reads what this rank writes into its page, and tells people
    rank: int
    world_size: int
    node: NodeRanks  # the ranks that are on this rank's node
    even: bool  # all ranks must make the same number of steps
    patience_ns: int  # how much later than at the next boundary a rank without peers may see what it is asked
    attempt: int
    memory_interval: MemoryInterval
    page: Page
    peers: list[Page]  # of the node's ranks, this one's included
    orders: Page  # its second half holds what this rank is asked to do
    memory_dir: Path
    checkpoint_dir: Path
    storage_slots: Path  # for a snapshot slot on storage
    load_path: Path  # of the checkpoint to begin with, if any
    watched_lock: threading.Lock  # held while a snapshot is taken

    def resume(self) -> tuple[Resume, int]:
        """Where to take the state from; waits for the answer."""

    def on_term(self, signum: int) -> None:
        """This rank got a SIGTERM. Called in the watcher's thread."""

    def on_orphaned(self) -> None:
        """The supervisor is gone. Called in the watcher's thread."""

    def at_boundary(self, step: int) -> None:
        """`step` steps are completed, and the order for this boundary is not read yet."""

    def save_as(self, request: SavingRequest) -> None:
        """From now on save as the script asks; the page says so, too."""

    def held(self, snapshots: HeldSnapshots, step: int, why: Why) -> None:
        """The snapshot of `step` is held for saving."""

    def leave(self) -> int:
        """The last step's snapshot is held: wait for what must be done before this rank ends; returns the exit code."""

    def leave_at_once(self) -> NoReturn:
        """As `leave`, and end this process with that exit code, from any thread: no atexit function runs."""

    def finish(self) -> None:
        """The loop is over: wait for what must be done before the script goes on."""

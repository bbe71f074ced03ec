"""The interface between a Job and what decides for its rank: the supervisor, or the ranks among themselves.

`Supervised` (supervised.py) and `Standalone` (standalone/standalone.py) implement it. The Job calls all methods in the
thread that trains, except where a method says otherwise.
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
    """Decides where a rank resumes, stops and saves."""

    is_supervised: bool
    """whether a supervisor reads this rank's page and reports to users"""
    rank: int
    world_size: int
    node: NodeRanks
    """the ranks on this rank's node"""
    even: bool
    """whether all ranks must make the same number of steps"""
    patience_ns: int
    """nanoseconds by which a rank without peers may see an order later than at the next boundary"""
    attempt: int
    memory_interval: MemoryInterval
    page: Page
    """this rank's page"""
    peers: list[Page]
    """pages of the node's ranks, this rank's included"""
    orders: Page
    """the page whose second half holds the orders for this rank"""
    memory_dir: Path
    checkpoint_dir: Path
    storage_slots: Path
    """directory for snapshot slots on storage"""
    load_path: Path
    """path of the checkpoint to begin with, if one was asked for"""
    watched_lock: threading.Lock
    """lock that is held while a snapshot is taken"""

    def resume(self) -> tuple[Resume, int]:
        """Wait for the decision where to take the state from. Return the kind of the resume and its step."""

    def on_term(self, signum: int) -> None:
        """Handle a SIGTERM of this rank. Called in the watcher's thread."""

    def on_orphaned(self) -> None:
        """Handle the end of the supervisor. Called in the watcher's thread."""

    def at_boundary(self, step: int) -> None:
        """Act after `step` completed steps, before the order for this boundary is read."""

    def save_as(self, request: SavingRequest) -> None:
        """Save as the script asks from now on. The page holds the request, too."""

    def held(self, snapshots: HeldSnapshots, step: int, why: Why) -> None:
        """Save the snapshot of `step`, which is held for saving."""

    def leave(self) -> int:
        """Wait for what must be done before this rank ends, and return the exit code. The last snapshot is held."""

    def leave_at_once(self) -> NoReturn:
        """Do what `leave` does, and end this process with its exit code, without atexit functions; from any thread."""

    def finish(self) -> None:
        """Wait at the end of the loop for what must be done before the script goes on."""

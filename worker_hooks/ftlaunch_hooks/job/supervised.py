"""A rank under a supervisor: its orders stand in its page, the supervisor decides and saves."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

from ftlaunch_contract import node_ranks, protocol
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.pages.page import NONE, Page, open_pages
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_contract.pages.words import LEAVE
from ftlaunch_contract.protocol import Resume, Why
from ftlaunch_contract.saving_request import SavingRequest
from ftlaunch_hooks.standalone.shard_saver import HeldSnapshots

# Seconds that a rank that is told to leave may take to end a step that other ranks have ended: as long as its last
# step took, but at least the first of these and at most the second.
_LAG, _MOST_LAG = 0.2, 5.0
_LEAVE = int(LEAVE)


class Supervised:
    """A Coordinator that asks the supervisor."""

    is_supervised = True
    even = False  # a rank may end its loop before the others
    patience_ns = 10_000_000

    def __init__(self, page: Page) -> None:
        """page: this rank's. Raises OSError when the memory directory is gone, ValueError for what cannot be read."""
        environ = os.environ
        self.page = self.orders = page
        self.rank = int(environ["RANK"])
        self.world_size = int(environ["WORLD_SIZE"])
        self.node = node_ranks.parse(environ.get(protocol.ENV_NODE_RANKS), self.world_size)
        self.attempt = int(environ[protocol.ENV_ATTEMPT])
        self.memory_interval = protocol.memory_interval(environ[protocol.ENV_MEMORY_INTERVAL])
        self.memory_dir = Path(environ[protocol.ENV_MEMORY_DIR])
        self.checkpoint_dir = Path(environ[protocol.ENV_CHECKPOINT_DIR])
        self.storage_slots = layout.storage_slots(self.checkpoint_dir, environ[protocol.ENV_JOB_ID])
        self.load_path = Path(environ[protocol.ENV_LOAD_CHECKPOINT])
        self.peers = open_pages(self.memory_dir, self.node.count, self.node.first)
        self.watched_lock = threading.Lock()

    def resume(self) -> tuple[Resume, int]:
        """Wait for the supervisor's decision. No limit: it may be verifying checkpoints, and its end is noticed."""
        while not wait_until(lambda: self.page.resume[0] != Resume.UNDECIDED, time.monotonic() + 60.0):
            self.page.beat(NONE, time.monotonic_ns())
        return self.page.resume

    def on_term(self, signum: int) -> None:
        """Leave at once when the attempt is over; otherwise tell the supervisor of the wish to stop."""
        if self.page.leave:
            patience = min(max(self.page.step_seconds, _LAG), _MOST_LAG)
            wait_until(lambda: not self._lags(), time.monotonic() + patience)
            os._exit(protocol.EXIT_STOPPED)
        if self.page.stop_at != NONE or self.page.stop_wanted:
            return  # a second SIGTERM changes nothing
        self.page.stop_wanted = signum
        request = {"do": "stop", "why": f"SIGTERM to rank {self.rank}"}
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(5.0)
            connection.connect(os.environ[protocol.ENV_CONTROL])
            connection.sendall(json.dumps(request).encode() + b"\n")
            connection.recv(64)

    def _lags(self) -> bool:
        """Whether another rank of the node has the snapshot of a step of which this rank has none yet.

        That rank has passed the step's collectives, so this one will soon end the step, too. Without this rank's
        snapshot the step would be lost to all.
        """
        return max(max(page.slot_steps()) for page in self.peers) > max(self.page.slot_steps())

    def on_orphaned(self) -> None:
        """Leave at once: the snapshots in memory stay there for the next supervisor."""
        os._exit(protocol.EXIT_STOPPED)

    def at_boundary(self, step: int) -> None:
        """Leave when the attempt is over; everything else the supervisor reads from the page."""
        if self.page.q[_LEAVE] and not self._lags():
            os._exit(protocol.EXIT_STOPPED)

    def save_as(self, request: SavingRequest) -> None:
        """Nothing to do: the supervisor reads it from the page."""

    def held(self, snapshots: HeldSnapshots, step: int, why: Why) -> None:
        """Nothing to do: the supervisor reads it from the page."""

    def leave(self) -> int:
        """Nothing to wait for: the snapshot is committed, and the supervisor's saver saves it."""
        sys.stdout.flush()
        return protocol.EXIT_SAVED

    def leave_at_once(self) -> NoReturn:
        """End this process with what `leave` returns."""
        os._exit(self.leave())

    def finish(self) -> None:
        """Nothing to do: the supervisor waits for its saver."""

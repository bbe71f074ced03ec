"""Coordinates a rank under a supervisor, which writes orders into the rank's page, decides, and saves.

The Job calls a `Supervised` in the thread that trains; `on_term` and `on_orphaned` run in the watcher's thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
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

# A rank that is told to leave may complete a step that other ranks have completed. It has as long as its last step
# took, within these limits.
_LEAST_LAG_SECONDS = 0.2
_MOST_LAG_SECONDS = 5.0
_LEAVE = int(LEAVE)


class Supervised:
    """The Coordinator (coordinator.py) of a rank under a supervisor."""

    is_supervised = True
    even = False  # the supervisor ends ranks that wait for a rank that has left its loop
    patience_ns = 10_000_000

    def __init__(self, page: Page, park: Callable[[], None]) -> None:
        """Read the environment, and open the pages of the node's ranks.

        Args:
            page: this rank's page.
            park: leaves the devices in order before this process ends itself; may take some seconds.

        Raises:
            OSError: the memory directory is gone.
            ValueError: a page or the environment cannot be read.
        """
        environ = os.environ
        self.page = self.orders = page
        self._park = park
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
        """Wait for the supervisor's decision where to resume, without limit.

        The supervisor may be verifying checkpoints, and its end would end this rank.

        Returns:
            The kind of the resume and its step.
        """
        while not wait_until(lambda: self.page.resume[0] != Resume.UNDECIDED, time.monotonic() + 60.0):
            self.page.beat(NONE, time.monotonic_ns())
        return self.page.resume

    def on_term(self, signum: int) -> None:
        """End this process if the attempt is over; otherwise tell the supervisor of the wish to stop.

        Args:
            signum: the signal's number.
        """
        if self.page.leave:
            patience = min(max(self.page.step_seconds, _LEAST_LAG_SECONDS), _MOST_LAG_SECONDS)
            wait_until(lambda: not self._lags(), time.monotonic() + patience)
            self._exit()
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
        """Return whether another rank of the node has a snapshot of a later step than this rank's snapshots.

        The other rank has passed the step's collectives, so this rank will soon complete the step, too. Without this
        rank's snapshot the step would be lost to all ranks.
        """
        return max(max(page.slot_steps()) for page in self.peers) > max(self.page.slot_steps())

    def on_orphaned(self) -> None:
        """End this process. The snapshots stay in memory for the next supervisor."""
        self._exit()

    def _exit(self) -> NoReturn:
        """End this process, once its devices are left in order."""
        self._park()
        os._exit(protocol.EXIT_STOPPED)

    def at_boundary(self, step: int) -> None:
        """End this process if the attempt is over. The supervisor reads everything else from the page."""
        if self.page.q[_LEAVE] and not self._lags():
            self._exit()

    def save_as(self, request: SavingRequest) -> None:
        """Do nothing: the supervisor reads the request from the page."""

    def held(self, snapshots: HeldSnapshots, step: int, why: Why) -> None:
        """Do nothing: the supervisor reads from the page which step is held."""

    def leave(self) -> int:
        """Return the exit code without waiting: the snapshot is complete, and the supervisor's saver saves it."""
        sys.stdout.flush()
        return protocol.EXIT_SAVED

    def leave_at_once(self) -> NoReturn:
        """End this process with the code that `leave` returns, without atexit functions."""
        os._exit(self.leave())

    def finish(self) -> None:
        """Do nothing: the supervisor waits for its saver."""

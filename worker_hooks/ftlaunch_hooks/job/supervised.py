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

from ftlaunch_contract import protocol
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.pages.page import NONE, Page, open_pages
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_contract.protocol import Resume, Why
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter

# seconds a rank that is told to leave may take to the end of a step that others have done: as long as its last step,
# but not less and not more than this
_LAG, _MOST_LAG = 0.2, 5.0


class Supervised:
    """A Coordinator that asks the supervisor."""

    def __init__(self, page: Page) -> None:
        """page: this rank's. Raises OSError when the memory directory is gone."""
        environ = os.environ
        self.page = self.orders = page
        self.rank = int(environ["RANK"])
        self.world_size = int(environ["WORLD_SIZE"])
        self.attempt = int(environ[protocol.ENV_ATTEMPT])
        self.memory_interval = protocol.memory_interval(environ[protocol.ENV_MEMORY_INTERVAL])
        self.memory_dir = Path(environ[protocol.ENV_MEMORY_DIR])
        self.checkpoint_dir = Path(environ[protocol.ENV_CHECKPOINT_DIR])
        self.storage_slots = layout.storage_slots(self.checkpoint_dir, environ[protocol.ENV_JOB_ID])
        self.load_path = Path(environ[protocol.ENV_LOAD_CHECKPOINT])
        self.peers = open_pages(self.memory_dir, self.world_size)
        self.watched_lock = threading.Lock()

    def resume(self) -> tuple[Resume, int]:
        """The supervisor's decision; it may still be verifying checkpoints. Nothing to time out: it is watched."""
        while not wait_until(lambda: self.page.resume[0] != Resume.UNDECIDED, time.monotonic() + 60.0):
            self.page.beat(NONE, time.monotonic_ns())
        return self.page.resume

    def on_term(self, signum: int) -> None:
        """Leave at once where the attempt is over; else pass the wish to stop on to the supervisor."""
        if self.page.leave:
            patience = min(max(self.page.step_seconds, _LAG), _MOST_LAG)
            wait_until(lambda: not self._lags(), time.monotonic() + patience)
            os._exit(protocol.EXIT_STOPPED)
        if self.page.stop_at != NONE or self.page.stop_wanted:
            return  # once is enough
        self.page.stop_wanted = signum
        request = {"do": "stop", "why": f"SIGTERM to rank {self.rank}"}
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(5.0)
            connection.connect(os.environ[protocol.ENV_CONTROL])
            connection.sendall(json.dumps(request).encode() + b"\n")
            connection.recv(64)

    def _lags(self) -> bool:
        """Whether another rank has the snapshot of a step of which this one's is still to come: soon, as nobody waits.

        The other has passed that step's collectives. Without this snapshot the step would be lost to all.
        """
        return max(max(page.slot_steps()) for page in self.peers) > max(self.page.slot_steps())

    def on_orphaned(self) -> None:
        """Leave at once: what is in memory stays there for the next supervisor."""
        os._exit(protocol.EXIT_STOPPED)

    def at_boundary(self, step: int) -> None:
        """The supervisor looks at the page by itself; an attempt that is over makes no further step."""
        if self.page.leave and not self._lags():
            os._exit(protocol.EXIT_STOPPED)

    def held(self, snapshots: Snapshotter, step: int, why: Why) -> None:
        """The supervisor sees it in the page."""

    def leave(self) -> int:
        """The saver saves; the snapshot is committed already."""
        sys.stdout.flush()
        return protocol.EXIT_SAVED

    def finish(self) -> None:
        """The supervisor waits for the saver, not we."""

"""The thread that sends copies: those that are asked for, then the newest step that is due, one at a time."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ftlaunch.nodes.channel.framing import FrameError
from ftlaunch.nodes.peers.buddy_link import BuddyLink, GivenUpError, PeerAddress
from ftlaunch.nodes.peers.copier_node import CopierAttempt, CopierNode
from ftlaunch.nodes.peers.held.own_slots import NotHeldError
from ftlaunch.nodes.peers.wire.peer_connection import PeerError, why

_LOOK, _LONGEST_LOOK = 0.01, 0.1  # seconds between looks at the pages, which have no event
_LOOKS = 10  # in the time between two copies
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds after a copy that failed, doubled each time

Tell = Callable[[dict[str, Any]], None]


class CopySender:
    """Sends to one buddy at a time; `tell` is called with what became of each copy."""

    def __init__(self, node: CopierNode, tell: Tell) -> None:
        self._node = node
        self._tell = tell
        self._wake = threading.Condition()
        self._asked: deque[int] = deque()
        self._every = 0
        self._buddy: PeerAddress | None = None
        self._link: BuddyLink | None = None
        self._done: tuple[CopierAttempt | None, PeerAddress | None, int] = (None, None, -1)
        self._pause = _FIRST_PAUSE
        self._not_before = 0.0
        threading.Thread(target=self._run, name="sender", daemon=True).start()

    # --- called by the main thread ---------------------------------------------------------------------------

    def send_to(self, buddy: PeerAddress | None) -> None:
        """Where copies go from now on; None: nowhere."""
        with self._wake:
            self._buddy = buddy
            self._hurry()

    def send_every(self, every: int) -> None:
        """Copy each step that is a multiple of `every`; 0: none."""
        with self._wake:
            self._every = every
            self._hurry()

    def send_now(self, step: int) -> None:
        """Copy this step next."""
        with self._wake:
            self._asked.append(step)
            self._hurry()

    def look(self) -> None:
        """The attempt has changed."""
        with self._wake:
            self._hurry()

    def _hurry(self) -> None:
        self._pause = _FIRST_PAUSE
        self._not_before = 0.0
        self._wake.notify()

    # --- the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._wake:
                attempt = self._node.attempt
                buddy = self._buddy
                asked = bool(self._asked)
                step = self._asked.popleft() if asked else self._due(attempt, buddy)
                if step is None:
                    idle = attempt is None or attempt.over.is_set() or buddy is None or not self._every
                    self._wake.wait(None if idle or attempt is None else self._until_next(attempt))
                    continue
            self._copy(attempt, buddy, step, asked)

    def _until_next(self, attempt: CopierAttempt) -> float:
        """Seconds until the next look."""
        return min(max(attempt.slots.step_seconds * self._every / _LOOKS, _LOOK), _LONGEST_LOOK)

    def _due(self, attempt: CopierAttempt | None, buddy: PeerAddress | None) -> int | None:
        """The newest step that is to be copied now."""
        if attempt is None or attempt.over.is_set() or buddy is None or not self._every:
            return None
        if time.monotonic() < self._not_before:
            return None
        last = self._done[2] if self._done[:2] == (attempt, buddy) else -1
        return max((step for step in attempt.slots.steps() if step > last and step % self._every == 0), default=None)

    def _copy(self, attempt: CopierAttempt | None, buddy: PeerAddress | None, step: int, asked: bool) -> None:
        began = time.monotonic()
        worked = time.thread_time()
        about = {"did": "copied", "lineage": attempt.lineage if attempt else None, "step": step}
        told: dict[str, Any] = {**about, "node": buddy.node if buddy else None}
        try:
            told["bytes"] = self._send(attempt, buddy, step)
        except NotHeldError as error:  # a newer step is there, or will be
            told["error"] = why(error)
        except (PeerError, FrameError, GivenUpError, ValueError, OSError) as error:
            told["error"] = why(error)
            self._not_before = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        else:
            self._done = attempt, buddy, max(step, self._done[2]) if self._done[:2] == (attempt, buddy) else step
            self._pause = _FIRST_PAUSE
            told["seconds"] = round(time.monotonic() - began, 6)
            told["processor_seconds"] = round(time.thread_time() - worked, 6)
        self._tell({**told, "asked": True} if asked else told)

    def _send(self, attempt: CopierAttempt | None, buddy: PeerAddress | None, step: int) -> int:
        if attempt is None or attempt.over.is_set():
            raise GivenUpError("no copies are sent before the next attempt begins")
        if buddy is None:
            raise GivenUpError("there is no node that keeps this node's copies")
        if self._link is None or self._link.buddy != buddy:
            if self._link is not None:
                self._link.close()
            self._link = BuddyLink(self._node, buddy, lambda: self._buddy == buddy)
        return self._link.copy(attempt, step)

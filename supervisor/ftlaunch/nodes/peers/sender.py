"""The thread of a copier that sends copies to the buddy, one at a time.

Requested copies go first, then the newest step that is due. The public methods are called by the copier's main thread.
"""

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

_SHORTEST_LOOK = 0.01  # seconds between two looks at the pages, which cannot notify anybody
_LONGEST_LOOK = 0.1
_LOOKS = 10  # in the time between two copies
_FIRST_PAUSE = 0.1  # seconds after a failed copy; doubled each time up to _LONGEST_PAUSE
_LONGEST_PAUSE = 5.0

Tell = Callable[[dict[str, Any]], None]


class CopySender:
    """Sends copies to one buddy at a time."""

    def __init__(self, node: CopierNode, tell: Tell) -> None:
        """Start the thread.

        Args:
            node: the state of this copier.
            tell: is given the answer `copied` for each copy that ends.

        Raises:
            RuntimeError: no thread can be started.
        """
        self._node = node
        self._tell = tell
        self._wake = threading.Condition()
        self._asked: deque[int] = deque()
        self._every = 0
        self._buddy: PeerAddress | None = None
        self._link: BuddyLink | None = None
        # The attempt, the buddy and the newest step of the copies that have succeeded.
        self._done: tuple[CopierAttempt | None, PeerAddress | None, int] = (None, None, -1)
        self._pause = _FIRST_PAUSE
        self._not_before = 0.0  # until when nothing is sent after a failure
        threading.Thread(target=self._run, name="sender", daemon=True).start()

    # --- called by the main thread ---------------------------------------------------------------------------

    def send_to(self, buddy: PeerAddress | None) -> None:
        """Send copies to `buddy` from now on; None for nowhere."""
        with self._wake:
            self._buddy = buddy
            self._wake_thread()

    def send_every(self, every: int) -> None:
        """Copy each step that is a multiple of `every`; 0 for none."""
        with self._wake:
            self._every = every
            self._wake_thread()

    def send_now(self, step: int) -> None:
        """Copy a step next, whether it is due or not."""
        with self._wake:
            self._asked.append(step)
            self._wake_thread()

    def look(self) -> None:
        """Look for a step to copy at once, because the attempt has changed."""
        with self._wake:
            self._wake_thread()

    def _wake_thread(self) -> None:
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
            self._copy(attempt=attempt, buddy=buddy, step=step, asked=asked)

    def _until_next(self, attempt: CopierAttempt) -> float:
        """Return the seconds until the next look at the pages."""
        return min(max(attempt.slots.step_seconds * self._every / _LOOKS, _SHORTEST_LOOK), _LONGEST_LOOK)

    def _due(self, attempt: CopierAttempt | None, buddy: PeerAddress | None) -> int | None:
        """Return the newest step that is due, or None."""
        if attempt is None or attempt.over.is_set() or buddy is None or not self._every:
            return None
        if time.monotonic() < self._not_before:
            return None
        last = self._done[2] if self._done[:2] == (attempt, buddy) else -1
        return max((step for step in attempt.slots.steps() if step > last and step % self._every == 0), default=None)

    def _copy(self, attempt: CopierAttempt | None, buddy: PeerAddress | None, step: int, asked: bool) -> None:
        began = time.monotonic()
        worked = time.thread_time()
        answer: dict[str, Any] = {
            "did": "copied",
            "lineage": attempt.lineage if attempt else None,
            "step": step,
            "node": buddy.node if buddy else None,
        }
        try:
            answer["bytes"] = self._send(attempt, buddy, step)
        except NotHeldError as error:  # a newer step is there, or soon will be
            answer["error"] = why(error)
        except (PeerError, FrameError, GivenUpError, ValueError, OSError) as error:
            answer["error"] = why(error)
            self._not_before = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        else:
            newest = max(step, self._done[2]) if self._done[:2] == (attempt, buddy) else step
            self._done = attempt, buddy, newest
            self._pause = _FIRST_PAUSE
            answer["seconds"] = round(time.monotonic() - began, 6)
            answer["processor_seconds"] = round(time.thread_time() - worked, 6)
        self._tell({**answer, "asked": True} if asked else answer)

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

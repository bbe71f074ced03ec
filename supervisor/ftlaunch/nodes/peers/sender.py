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

_SHORTEST_POLL_SECONDS = 0.01  # between two polls of the pages, which cannot notify anybody
_LONGEST_POLL_SECONDS = 0.1
_POLLS = 10  # in the time between two copies
_FIRST_PAUSE_SECONDS = 0.1  # after a failed copy; doubled each time up to _LONGEST_PAUSE_SECONDS
_LONGEST_PAUSE_SECONDS = 5.0

AnswerSender = Callable[[dict[str, Any]], None]


class CopySender:
    """Sends copies to one buddy at a time."""

    def __init__(self, node: CopierNode, send_answer: AnswerSender) -> None:
        """Start the thread.

        Args:
            node: the state of this copier.
            send_answer: called with the answer `copied` for each copy that ends.

        Raises:
            RuntimeError: no thread can be started.
        """
        self._node = node
        self._send_answer = send_answer
        self._wake = threading.Condition()
        self._asked: deque[int] = deque()
        self._every = 0
        self._buddy: PeerAddress | None = None
        self._link: BuddyLink | None = None
        # The attempt, the buddy and the newest step of the copies that have succeeded.
        self._done: tuple[CopierAttempt | None, PeerAddress | None, int] = (None, None, -1)
        self._pause_seconds = _FIRST_PAUSE_SECONDS
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

    def check_now(self) -> None:
        """Have the thread check at once whether a step is due, because the attempt has changed."""
        with self._wake:
            self._wake_thread()

    def _wake_thread(self) -> None:
        self._pause_seconds = _FIRST_PAUSE_SECONDS
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
                    self._wake.wait(None if idle or attempt is None else self._seconds_to_next_poll(attempt))
                    continue
            self._copy(attempt=attempt, buddy=buddy, step=step, asked=asked)

    def _seconds_to_next_poll(self, attempt: CopierAttempt) -> float:
        """Return the seconds until the next poll of the pages."""
        wanted = attempt.slots.step_seconds * self._every / _POLLS
        return min(max(wanted, _SHORTEST_POLL_SECONDS), _LONGEST_POLL_SECONDS)

    def _due(self, attempt: CopierAttempt | None, buddy: PeerAddress | None) -> int | None:
        """Return the newest step that is due, or None."""
        if attempt is None or attempt.over.is_set() or buddy is None or not self._every:
            return None
        if time.monotonic() < self._not_before:
            return None
        last = self._done[2] if self._done[:2] == (attempt, buddy) else -1
        held = attempt.slots.list_steps()
        return max((step for step in held if step > last and step % self._every == 0), default=None)

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
            self._not_before = time.monotonic() + self._pause_seconds
            self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)
        else:
            newest = max(step, self._done[2]) if self._done[:2] == (attempt, buddy) else step
            self._done = attempt, buddy, newest
            self._pause_seconds = _FIRST_PAUSE_SECONDS
            answer["seconds"] = round(time.monotonic() - began, 6)
            answer["processor_seconds"] = round(time.thread_time() - worked, 6)
        self._send_answer({**answer, "asked": True} if asked else answer)

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

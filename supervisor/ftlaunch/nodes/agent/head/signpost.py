"""Sends whoever comes to the endpoint on to the head that the nodes have elected elsewhere.

A machine that has nothing knows no other place than the job's endpoint. The elected head keeps a connection to whoever
listens there (nodes/agent/head/endpoint_watch.py); while that lasts, this process sends nodes on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ftlaunch.nodes.channel.connection import Connection
from ftlaunch.nodes.cluster import messages
from ftlaunch.system.loop import Clock

WAIT_SECONDS = 8.0
"""seconds in which an elected head finds a new listener at the endpoint: it tries again every two, and a try takes five
at most"""
_LINGER_SECONDS = 3.0  # after the connection to the elected head has ended, for the next one
_IDLE_SECONDS = 60.0  # between two turns of the loop in which nothing happens


class Signpost:
    """What drives the event loop of such a process, until no elected head is connected any more."""

    def __init__(self, clock: Clock) -> None:
        """Wait for an elected head. clock: monotonic seconds."""
        self._clock = clock
        self.where: tuple[str, int] | None = None
        """address and port of the elected head; None until one has told them"""
        self.is_over_once_told = True
        """whether the loop ends as soon as `where` is known"""
        self._deadline = clock() + WAIT_SECONDS
        self._has_ended = False
        self._elected: Connection | None = None
        self._waiting: list[Connection] = []  # nodes that have come before the elected head

    def accept(self, peer: Connection) -> None:
        """Accept a node, or the elected head: the first message shows which."""
        peer.on_message = lambda message: self._on_message(peer, message)
        peer.on_end = lambda why: self._on_end(peer)

    def _on_message(self, peer: Connection, message: Mapping[str, Any]) -> None:
        try:
            name = messages.check(message, messages.UP)
        except ValueError:
            peer.close()
            return
        if name == "elsewhere":
            self.where = message["address"], message["port"]
            self._elected = peer
            self._deadline = math.inf
            waiting = self._waiting
            self._waiting = []
            for node in waiting:
                self._send_on(node)
        elif name == "hello" and self.where is None:
            self._waiting.append(peer)
        elif name == "hello":
            self._send_on(peer)

    def _send_on(self, node: Connection) -> None:
        assert self.where is not None
        address, port = self.where
        node.send({"do": "elsewhere", "address": address, "port": port})

    def _on_end(self, peer: Connection) -> None:
        self._waiting = [node for node in self._waiting if node is not peer]
        if peer is self._elected:
            self._elected = None
            self._deadline = self._clock() + _LINGER_SECONDS

    def end(self) -> None:
        """End the loop, because this process is told to stop."""
        self._has_ended = True

    # --- for the event loop -----------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether no elected head is there, or has come in time, or this process is told to stop."""
        if self._has_ended:
            return True
        return self._clock() >= self._deadline or (self.is_over_once_told and self.where is not None)

    def handle(self, event: object) -> None:
        """Ignore `event`: nothing posts one."""

    def poll(self) -> None:
        """Do nothing: whatever happens is announced by a descriptor."""

    def next_poll_at(self) -> float:
        """Return when the loop must turn at the latest, in monotonic seconds."""
        return min(self._deadline, self._clock() + _IDLE_SECONDS)

    def fail(self, error: Exception) -> None:
        """End with `error`. Raises it."""
        raise error

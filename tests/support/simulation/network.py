"""Links between the simulated agents and the head: delays, cuts in one or both directions, resets, and TCP's answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support.simulation.world import World

_GIVES_UP = 2.0, 3.0  # the least and the largest number of seconds after which TCP gives up a silent peer
_PLAIN = frozenset({"beat", "heard"})
"""Messages of numbers, strings and lists only, which JSON would not change. They are the most frequent ones, and are
passed on without JSON to save time.
"""


class Link:
    """The network between a node and the head's machine."""

    def __init__(self, world: World, delay: float) -> None:
        """Make a link. delay: the largest number of seconds that a message takes."""
        self.world = world
        self.delay = delay
        self._cuts = [0, 0]  # the number of cuts from the node, and of cuts to the node
        self._pairs: list[tuple[End, End]] = []

    @property
    def up(self) -> bool:
        """Whether the link carries messages from the node."""
        return not self._cuts[0]

    @property
    def down(self) -> bool:
        """Whether the link carries messages to the node."""
        return not self._cuts[1]

    def connect(self, name: str, far: Link | None = None) -> tuple[End, End]:
        """Make a connection.

        Args:
            name: the name of the node.
            far: the link of the head's machine, or None if the head is on the node itself.

        Returns:
            The node's end and the head's end.
        """
        ends = (
            End(self, of_node=True, name=name, far=far),
            End(self, of_node=False, name=name, far=far),
        )
        ends[0].other = ends[1]
        ends[1].other = ends[0]
        for link in (self, far):
            if link is not None:
                link._pairs = [pair for pair in link._pairs if pair[0].open or pair[1].open]
                link._pairs.append(ends)
        return ends

    def cut(self, *, up: bool, down: bool, seconds: float) -> None:
        """Carry nothing in one or both directions for some seconds; senders give up if the cut lasts."""
        self._cuts[0] += up
        self._cuts[1] += down
        for pair in self._pairs:
            for end in pair:
                least, most = _GIVES_UP
                self.world.after(self.world.random.uniform(least, most), self._give_up, end)
        self.world.after(seconds, self._heal, up, down)

    def _give_up(self, end: End) -> None:
        if not (self.up and self.down):
            end.end("timed out")

    def _heal(self, up: bool, down: bool) -> None:
        self._cuts[0] -= up
        self._cuts[1] -= down
        for pair in self._pairs:
            for end in pair:
                end.flush()

    def carries(self, from_node: bool) -> bool:
        """Return whether a message from the node, or to the node, gets through now."""
        return not self._cuts[0 if from_node else 1]

    def reset(self, later: float) -> None:
        """End all connections, and lose the messages on their way.

        The node hears of the end at once, the other side after `later` seconds.
        """
        for pair in list(self._pairs):
            if pair[0].open:
                pair[0].lose("reset", later)


class End:
    """One end of a connection, in place of `channel.Connection`."""

    other: End

    def __init__(self, link: Link, of_node: bool, name: str, far: Link | None) -> None:
        self.link = link
        self._of_node = of_node
        self.peer = f"{name}:1"
        self._far = far
        self.ready = True
        self.open = True
        self._waiting: list[str | dict[str, Any]] = []  # sent, and not on the way yet
        self._unread: list[str | dict[str, Any]] = []  # arrived while the process slept
        self._arrives = 0.0  # when the newest message arrives: messages keep their order
        self.on_message: Callable[[dict[str, Any]], None] = lambda message: None
        self.on_end: Callable[[str], None] = lambda why: None
        self.sleeps: Callable[[], bool] = lambda: False
        self.wake: Callable[[], None] = lambda: None
        """called after each message but frequent ones"""

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; messages arrive in order, or not at all."""
        if self.open:
            self._waiting.append(message if message["do"] in _PLAIN else json.dumps(message))
            self.flush()

    def flush(self) -> None:
        """Put waiting messages on their way, if the link carries them."""
        if not self.open or not self._waiting or not self._carries():
            return
        world, delay = self.link.world, self.link.delay
        for message in self._waiting:
            self._arrives = max(self._arrives, world.now + 0.0002 + world.random.random() * delay)
            world.after(self._arrives - world.now, self.other.deliver, message)
        self._waiting = []

    def deliver(self, message: str | dict[str, Any]) -> None:
        """Receive a message; tell the sender if this end is closed."""
        if not self.open:
            self._end_other()
        elif self._unread or self.sleeps():
            self._unread.append(message)
            if len(self._unread) == 1:
                self.link.world.after(0.05, self._read)
        else:
            self._deliver(message)

    def _read(self) -> None:
        """Read the messages that arrived while the process slept, once the process runs again."""
        if self.open and self.sleeps():
            self.link.world.after(0.05, self._read)
            return
        unread = self._unread
        self._unread = []
        for message in unread:
            if self.open:
                self._deliver(message)

    def _deliver(self, message: str | dict[str, Any]) -> None:
        if isinstance(message, str):
            self.on_message(json.loads(message))
            self.wake()
        else:
            self.on_message(message)

    def _carries(self) -> bool:
        return self.link.carries(self._of_node) and (self._far is None or self._far.carries(not self._of_node))

    def end(self, why: str) -> None:
        """Give the connection up on this side; the other side hears of the end if the link carries messages."""
        if not self.open:
            return
        self.open = self.ready = False
        self._end_other()
        self.on_end(why)

    def lose(self, why: str, later: float) -> None:
        """End this side silently; the other side hears of the end after `later` seconds."""
        self.open = self.ready = False
        self.link.world.after(later, self.other.end, why)
        self.on_end(why)

    def close(self) -> None:
        """Close the connection on behalf of its owner, who is not told."""
        if self.open:
            self.open = self.ready = False
            self._end_other()

    def _end_other(self) -> None:
        if self.other.open and self._carries():
            self.link.world.after(0.001, self.other.end, "closed by the other side")

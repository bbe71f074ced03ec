"""Links between the agents and the head: delay, cuts in one or both directions, and what TCP makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support.simulation.world import World

_GIVES_UP = 2.0, 3.0  # seconds in which TCP gives up a peer of which it hears nothing
_PLAIN = frozenset({"beat", "heard"})
"""Messages of numbers, strings and lists, which JSON does not change: they are most of all, and sent as they are."""


class Link:
    """The way between a node and the machine of the head."""

    def __init__(self, world: World, delay: float) -> None:
        """delay: seconds that a message takes at the most."""
        self.world, self.delay = world, delay
        self._cuts = [0, 0]  # from the node, and to it
        self._pairs: list[tuple[End, End]] = []

    @property
    def up(self) -> bool:
        """Whether it carries what the node sends."""
        return not self._cuts[0]

    @property
    def down(self) -> bool:
        """Whether it carries what is sent to the node."""
        return not self._cuts[1]

    def connect(self, name: str, far: Link | None = None) -> tuple[End, End]:
        """A connection: the node's end, and the head's. far: the link of the head's machine, where that has one."""
        ends = End(self, True, name, far), End(self, False, name, far)
        ends[0].other, ends[1].other = ends[1], ends[0]
        for link in (self, far):
            if link is not None:
                link._pairs = [pair for pair in link._pairs if pair[0].open or pair[1].open]
                link._pairs.append(ends)
        return ends

    def cut(self, *, up: bool, down: bool, seconds: float) -> None:
        """Nothing gets through for a while. Whoever sends gives the connection up, if that lasts."""
        self._cuts[0] += up
        self._cuts[1] += down
        for pair in self._pairs:
            for end in pair:
                self.world.after(self.world.random.uniform(*_GIVES_UP), self._give_up, end)
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
        """Whether a message gets through now."""
        return not self._cuts[0 if from_node else 1]

    def reset(self, later: float) -> None:
        """Connections end: the node hears of it now, the other side later. What was on its way is lost."""
        for pair in list(self._pairs):
            if pair[0].open:
                pair[0].lose("reset", later)


class End:
    """One end of a connection: like channel.Connection."""

    other: End

    def __init__(self, link: Link, of_node: bool, name: str, far: Link | None) -> None:
        self._link, self._of_node, self.peer, self._far = link, of_node, f"{name}:1", far
        self.ready, self.open = True, True
        self._waiting: list[str | dict[str, Any]] = []
        self._unread: list[str | dict[str, Any]] = []
        self._arrives = 0.0
        self.on_message: Callable[[dict[str, Any]], None] = lambda message: None
        self.on_end: Callable[[str], None] = lambda why: None
        self.sleeps: Callable[[], bool] = lambda: False
        self.wake: Callable[[], None] = lambda: None
        """told of each message but regular ones"""

    def send(self, message: dict[str, Any]) -> None:
        """In order, or not at all."""
        if self.open:
            self._waiting.append(message if message["do"] in _PLAIN else json.dumps(message))
            self.flush()

    def flush(self) -> None:
        """What waits goes on its way, if the link carries it."""
        if not self.open or not self._waiting or not self._carries():
            return
        world, delay = self._link.world, self._link.delay
        for told in self._waiting:
            self._arrives = max(self._arrives, world.now + 0.0002 + world.random.random() * delay)
            world.after(self._arrives - world.now, self.other.deliver, told)
        self._waiting = []

    def deliver(self, told: str | dict[str, Any]) -> None:
        """It has arrived; where nobody has this end any more, the sender is told so."""
        if not self.open:
            self._tell_other()
        elif self._unread or self.sleeps():
            self._unread.append(told)
            if len(self._unread) == 1:
                self._link.world.after(0.05, self._read)
        else:
            self._take(told)

    def _read(self) -> None:
        """Its process runs again, or not yet: what has come meanwhile is read in its order."""
        if self.open and self.sleeps():
            self._link.world.after(0.05, self._read)
            return
        unread, self._unread = self._unread, []
        for told in unread:
            if self.open:
                self._take(told)

    def _take(self, told: str | dict[str, Any]) -> None:
        if isinstance(told, str):
            self.on_message(json.loads(told))
            self.wake()
        else:
            self.on_message(told)

    def _carries(self) -> bool:
        return self._link.carries(self._of_node) and (self._far is None or self._far.carries(not self._of_node))

    def end(self, why: str) -> None:
        """This side gives up; the other hears of it if the link carries that."""
        if not self.open:
            return
        self.open = self.ready = False
        self._tell_other()
        self.on_end(why)

    def lose(self, why: str, later: float) -> None:
        """This side ends without a word; the other one hears of it later."""
        self.open = self.ready = False
        self._link.world.after(later, self.other.end, why)
        self.on_end(why)

    def close(self) -> None:
        """The owner closes it."""
        if self.open:
            self.open = self.ready = False
            self._tell_other()

    def _tell_other(self) -> None:
        if self.other.open and self._carries():
            self._link.world.after(0.001, self.other.end, "closed by the other side")

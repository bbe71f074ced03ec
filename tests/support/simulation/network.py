"""Links between the agents and the head: delay, cuts in one or both directions, and what TCP makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support.simulation.world import World

_GIVES_UP = 2.0, 3.0  # seconds in which TCP gives up a peer of which it hears nothing


class Link:
    """The way between a node and the machine of the head."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.up = self.down = True  # from the node, and to it
        self._pairs: list[tuple[End, End]] = []

    def connect(self, name: str, far: Link | None = None) -> tuple[End, End]:
        """A connection: the node's end, and the head's. far: the link of the head's machine, where that has one."""
        ends = End(self, True, name, far), End(self, False, name, far)
        ends[0].other, ends[1].other = ends[1], ends[0]
        self._pairs.append(ends)
        if far is not None:
            far._pairs.append(ends)
        return ends

    def cut(self, *, up: bool, down: bool, seconds: float) -> None:
        """Nothing gets through for a while. Whoever sends gives the connection up, if that lasts."""
        self.up, self.down = self.up and not up, self.down and not down
        pairs = list(self._pairs)
        for end in (end for pair in pairs for end in pair):
            self.world.after(self.world.random.uniform(*_GIVES_UP), lambda end=end: self._give_up(end))
        self.world.after(seconds, self._heal)

    def _give_up(self, end: End) -> None:
        if not (self.up and self.down):
            end.end("timed out")

    def _heal(self) -> None:
        self.up = self.down = True
        for end in (end for pair in self._pairs for end in pair):
            end.flush()

    def carries(self, from_node: bool) -> bool:
        """Whether a message gets through now."""
        return self.up if from_node else self.down


class End:
    """One end of a connection: like channel.Connection."""

    other: End

    def __init__(self, link: Link, of_node: bool, name: str, far: Link | None) -> None:
        self._link, self._of_node, self.peer, self._far = link, of_node, f"{name}:1", far
        self.ready, self.open = True, True
        self._waiting: list[str] = []
        self._arrives = 0.0
        self.on_message: Callable[[dict[str, Any]], None] = lambda message: None
        self.on_end: Callable[[str], None] = lambda why: None
        self.sleeps: Callable[[], bool] = lambda: False

    def send(self, message: dict[str, Any]) -> None:
        """In order, or not at all."""
        if self.open:
            self._waiting.append(json.dumps(message))
            self.flush()

    def flush(self) -> None:
        """What waits goes on its way, if the link carries it."""
        world = self._link.world
        while self.open and self._waiting and self._carries():
            text = self._waiting.pop(0)
            self._arrives = max(self._arrives, world.now + world.random.uniform(0.0002, 0.02))
            world.after(self._arrives - world.now, lambda text=text: self.other.deliver(text))

    def deliver(self, text: str) -> None:
        """It has arrived; where nobody has this end any more, the sender is told so."""
        if self.open and self.sleeps():
            self._link.world.after(0.05, lambda: self.deliver(text))
        elif self.open:
            self.on_message(json.loads(text))
        else:
            self._tell_other()

    def _carries(self) -> bool:
        return self._link.carries(self._of_node) and (self._far is None or self._far.carries(not self._of_node))

    def end(self, why: str) -> None:
        """This side gives up; the other hears of it if the link carries that."""
        if not self.open:
            return
        self.open = self.ready = False
        self._tell_other()
        self.on_end(why)

    def close(self) -> None:
        """The owner closes it."""
        if self.open:
            self.open = self.ready = False
            self._tell_other()

    def _tell_other(self) -> None:
        if self._carries():
            self._link.world.after(0.001, lambda: self.other.end("closed by the other side"))

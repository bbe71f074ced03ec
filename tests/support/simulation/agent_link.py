"""A simulated agent's connection to the head, made again whenever the connection ends.

`SimLink` takes the place of the product's `HeadLink`. The simulated world calls it in its one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.support.simulation.network import Link
from tests.support.simulation.storage import ENDPOINT

if TYPE_CHECKING:
    from tests.support.simulation.machine import Machine


_UNCOUNTED = ("beat",)  # messages that `SimLink.sent` leaves out


class SimLink:
    """Tries to reach the head until closed; has the attributes and methods of `HeadLink` that an agent uses."""

    def __init__(
        self, machine: Machine, on_message: Callable[[dict[str, Any]], None], on_ready: Callable[[], None]
    ) -> None:
        """Begin the first try.

        Args:
            machine: the node of the agent.
            on_message: called with each message of the head.
            on_ready: called when a connection is made.
        """
        self._machine = machine
        self._on_message = on_message
        self._on_ready = on_ready
        self._end: Any = None
        self._place = ENDPOINT
        self.sent = 0
        """the number of messages sent, without beats"""
        self._tries = 0  # the number of the newest try; an earlier try that ends later is ignored
        self.alone_since: float | None = machine.clock()
        self.was_met = False
        self.refused = False
        self.broken_off = 0
        self.why = "not tried yet"
        self.endpoint = "head:1"
        self.tried_at = machine.clock()
        self._pause = 0.1
        self._try()

    @property
    def at_home(self) -> bool:
        """Whether the head's address is that of the agent's own machine."""
        return self._place[0] == self._machine.name

    def send(self, do: str, **fields: Any) -> None:
        """Send a message to the head, with the wall clock of this machine in `hello`; do nothing without a head."""
        if self._end is not None and self._end.open:
            if do == "hello":
                fields["wall"] += self._machine.wall
            self.sent += do not in _UNCOUNTED
            self._end.send({"do": do, **fields})

    def _try(self) -> None:
        machine = self._machine
        if not machine.lives or machine.link is not self or self.alone_since is None:
            return
        self._tries += 1
        this_try = self._tries
        job = machine.job
        if not machine.agent_awake:
            machine.world.after(0.1, self._try)
            return
        self.tried_at = machine.clock()
        there = job.machine(self._place[0]) if self._place[0] != machine.name else machine
        head = job.listener(self._place)
        if not job.connected(machine, there) or there.down or (head is not None and head.sleeps()):
            machine.world.after(5.0, self._gave_up, this_try)
        elif head is None:
            if self.at_home:
                machine.search.start_head()
            self._failed("refused", refused=True)
        else:
            machine.world.after(0.002, self._open, this_try)

    def _gave_up(self, this_try: int) -> None:
        if this_try == self._tries and self.alone_since is not None:
            self._failed("timed out", refused=False)

    def _open(self, this_try: int) -> None:
        machine = self._machine
        head = machine.job.listener(self._place)
        if this_try != self._tries or self.alone_since is None:
            return
        if not machine.agent_awake and machine.lives:
            machine.world.after(0.02, self._open, this_try)
            return
        if head is None or head.sleeps() or not machine.job.connected(machine, head.machine) or not machine.lives:
            self._failed("broken off", refused=False)
            return
        if head.machine is machine:
            near, far = Link(machine.world, 0.0002), None
        else:
            near, far = machine.way, head.machine.way
        self._end, theirs = near.connect(machine.name, far)
        end = self._end
        end.on_message = machine.when_awake(self._on_message)
        end.on_end = lambda why: self._failed(why, refused=False) if self._end is end else None
        self.alone_since = None
        self.was_met = True
        self.refused = False
        self._pause = 0.1
        head.accept(theirs)
        self._on_ready()

    def go_to(self, address: str, port: int) -> None:
        """Connect to the head at a machine's name and a port from now on."""
        if (address, port) == self._place:
            return
        self._place = address, port
        self.renew("the head is elsewhere now")
        self._tries += 1
        self._pause = 0.1
        self._machine.world.after(0.001, self._try)

    def renew(self, why: str, *, slowly: bool = False) -> None:
        """End the connection to the head, if there is one, and make another."""
        if self.alone_since is None:
            self._pause = 2.0 if slowly else self._pause
            end = self._end
            self._end = None
            if end is not None:
                end.close()
            self._failed(why, refused=False)

    def close(self) -> None:
        """End the connection, because the agent ends."""
        if self._end is not None:
            self._end.close()

    def _failed(self, why: str, *, refused: bool) -> None:
        machine = self._machine
        self._end = None
        self.why = why
        self.refused = refused
        if self.alone_since is None:
            self.alone_since = machine.clock()
        machine.world.after(self._pause, self._try)
        self._pause = min(1.5 * self._pause, 2.0)

"""An agent's connection to the head: like HeadLink, which tries again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.support.simulation.network import Link
from tests.support.simulation.storage import ENDPOINT

if TYPE_CHECKING:
    from tests.support.simulation.machine import Machine


_REGULAR = ("beat",)


class SimLink:
    """Like HeadLink: it tries again and again."""

    def __init__(self, machine: Machine, heard: Callable[[dict[str, Any]], None], met: Callable[[], None]) -> None:
        self._machine, self._heard, self._met = machine, heard, met
        self._end: Any = None
        self._place = ENDPOINT
        self.sent = 0
        """messages other than beats"""
        self._tries = 0  # a try that another one has followed comes to nothing
        self.alone_since: float | None = machine.clock()
        self.was_met, self.refused, self.broken_off = False, False, 0
        self.why, self.endpoint, self.tried_at = "not tried yet", "head:1", machine.clock()
        self._pause = 0.1
        self._try()

    @property
    def at_home(self) -> bool:
        """See HeadLink."""
        return self._place[0] == self._machine.name

    def send(self, do: str, **fields: Any) -> None:
        """See HeadLink."""
        if self._end is not None and self._end.open:
            if do == "hello":
                fields["wall"] += self._machine.wall
            self.sent += do not in _REGULAR
            self._end.send({"do": do, **fields})

    def _try(self) -> None:
        machine = self._machine
        if not machine.lives or machine.link is not self or self.alone_since is None:
            return
        self._tries += 1
        this, job = self._tries, machine.job
        if not machine.agent_awake:
            machine.world.after(0.1, self._try)
            return
        self.tried_at = machine.clock()
        there = job.machine(self._place[0]) if self._place[0] != machine.name else machine
        head = job.listener(self._place)
        if not job.connected(machine, there) or there.down or (head is not None and head.sleeps()):
            machine.world.after(5.0, self._gave_up, this)
        elif head is None:
            if self.at_home:
                machine.search.start_head()
            self._failed("refused", refused=True)
        else:
            machine.world.after(0.002, self._open, this)

    def _gave_up(self, this: int) -> None:
        if this == self._tries and self.alone_since is not None:
            self._failed("timed out", refused=False)

    def _open(self, this: int) -> None:
        machine, head = self._machine, self._machine.job.listener(self._place)
        if this != self._tries or self.alone_since is None:
            return
        if not machine.agent_awake and machine.lives:
            machine.world.after(0.02, self._open, this)
            return
        if head is None or head.sleeps() or not machine.job.connected(machine, head.machine) or not machine.lives:
            self._failed("broken off", refused=False)
            return
        here = head.machine is machine
        near, far = (Link(machine.world, 0.0002), None) if here else (machine.way, head.machine.way)
        self._end, theirs = near.connect(machine.name, far)
        end = self._end
        end.on_message = machine.when_awake(self._heard)
        end.on_end = lambda why: self._failed(why, refused=False) if self._end is end else None
        self.alone_since, self.was_met, self.refused, self._pause = None, True, False, 0.1
        head.accept(theirs)
        self._met()

    def go_to(self, address: str, port: int) -> None:
        """See HeadLink."""
        if (address, port) == self._place:
            return
        self._place = address, port
        self.renew("the head is elsewhere now")
        self._tries += 1
        self._pause = 0.1
        self._machine.world.after(0.001, self._try)

    def renew(self, why: str) -> None:
        """See HeadLink."""
        if self.alone_since is None:
            end, self._end = self._end, None
            if end is not None:
                end.close()
            self._failed(why, refused=False)

    def close(self) -> None:
        """The agent ends."""
        if self._end is not None:
            self._end.close()

    def _failed(self, why: str, *, refused: bool) -> None:
        machine = self._machine
        self._end, self.why, self.refused = None, why, refused
        if self.alone_since is None:
            self.alone_since = machine.clock()
        machine.world.after(self._pause, self._try)
        self._pause = min(1.5 * self._pause, 2.0)

"""A node: the real agent, over ranks that only count, whose memory outlives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ftlaunch.agent.agent import Agent
from ftlaunch.agent.head_search import HeadSearch
from ftlaunch.cluster.membership.facts import NodeFacts
from tests.support.simulation.network import Link
from tests.support.simulation.ranks import Memory, Ranks
from tests.support.simulation.storage import ENDPOINT, STALE
from tests.support.simulation.world import MachineClock

if TYPE_CHECKING:
    from tests.support.simulation.job import Job

FACTS = NodeFacts("0.1", "3.11.4", "2.13.0", "abc", "m0")


class Helpers:
    """Like NodeHelpers: all is done at once."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def may_begin(self, now: float) -> bool:
        """The fork server is ready."""
        return True

    def ask_saver(self, request: dict[str, Any], slot_dirs: object) -> None:
        """It saves."""

    def collect(self, number: int, request: object) -> None:
        """Collected."""
        self._machine.link.send("collected", number=number)

    def collect_no_more(self, number: int) -> None:
        """Nothing is under way."""

    def look(self, now: float) -> None:
        """Nothing is to be told."""


class SimLink:
    """Like HeadLink: it tries again and again."""

    def __init__(self, machine: Machine, heard: Callable[[dict[str, Any]], None], met: Callable[[], None]) -> None:
        self._machine, self._heard, self._met = machine, heard, met
        self._end: Any = None
        self._place = ENDPOINT
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
            self._end.send({"do": do, **fields})

    def _try(self) -> None:
        machine = self._machine
        if not machine.lives or machine.link is not self or self.alone_since is None:
            return
        self._tries += 1
        this, job = self._tries, machine.job
        if not machine.awake:
            machine.world.after(0.1, self._try)
            return
        self.tried_at = machine.clock()
        there = job.machine(self._place[0]) if self._place[0] != machine.name else machine
        head = job.listener(self._place)
        if not job.connected(machine, there) or there.down or (head is not None and head.sleeps()):
            machine.world.after(5.0, lambda: self._gave_up(this))
        elif head is None:
            if self.at_home:
                machine.search.start_head()
            self._failed("refused", refused=True)
        else:
            machine.world.after(0.002, lambda: self._open(this))

    def _gave_up(self, this: int) -> None:
        if this == self._tries and self.alone_since is not None:
            self._failed("timed out", refused=False)

    def _open(self, this: int) -> None:
        machine, head = self._machine, self._machine.job.listener(self._place)
        if this != self._tries or self.alone_since is None:
            return
        if head is None or not machine.job.connected(machine, head.machine) or not machine.lives:
            self._failed("broken off", refused=False)
            return
        near, far = (machine.way, head.machine.way) if head.machine is not machine else (Link(machine.world), None)
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


class Machine:
    """One node."""

    def __init__(self, job: Job, name: str, rate: float) -> None:
        self.job, self.name, self.world = job, name, job.world
        self.clock = MachineClock(job.world, rate)
        self.way = job.way(self)
        self.memory = Memory()
        self.lives, self.down, self._frozen = False, False, 0
        self.ranks = Ranks(self)
        self.code: int | None = None
        self._waiting: list[Callable[[], None]] = []
        self.thawed_at = -1.0

    @property
    def frozen(self) -> bool:
        """Nothing on it runs."""
        return self._frozen > 0

    @property
    def awake(self) -> bool:
        """Its processes run."""
        return self.lives and not self._frozen

    def when_awake(self, handler: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        """What comes while it is frozen is heard afterwards."""

        def heard(message: dict[str, Any]) -> None:
            if self.awake:
                handler(message)
            elif self.lives:
                self._waiting.append(lambda: handler(message))

        return heard

    def start(self) -> None:
        """Start the agent; what an earlier one has left running was ended with it."""
        self.lives, self.code = True, None
        self.ranks = Ranks(self)
        hello: dict[str, Any] = {"job": "sim", "host": self.name, "rank": -1, "probe": 1}
        hello["facts"] = replace(FACTS, machine=self.name).as_dict()
        search = HeadSearch(lambda order: self.job.claims.order(self, search, order), self.clock, self.name, STALE)
        self.search = search
        told: Any = self._make_link, self.ranks, Helpers(self), search, hello, self.say
        agent = Agent(self.job.spec, self.clock, *told)
        self.agent = agent
        self._tick(agent)

    def say(self, sentence: str) -> None:
        """On its terminal."""
        self.world.tell(f"{self.name}: {sentence}")

    def _make_link(self, heard: Any, met: Any) -> Any:
        self.link = SimLink.__new__(SimLink)
        self.link.__init__(self, heard, met)  # type: ignore[misc] - the link asks for itself while it is made
        return self.link

    def _tick(self, agent: Agent) -> None:
        if agent is not self.agent or not self.lives:
            return
        if self.awake:
            agent.look()
            if agent.over:
                self.code, self.lives = agent.code, False
                self.ranks.alive = False
                self.link.close()
                if agent.dismissed:
                    self.memory = Memory()
                    self.world.after(self.world.random.uniform(1.0, 9.0), self._come_back)
                self.world.tell(f"{self.name} ends with {self.code}")
                return
        self.world.after(self.world.random.uniform(0.01, 0.1), lambda: self._tick(agent))

    def _come_back(self) -> None:
        if not self.lives and not self.job.over:
            self.start()

    # --- faults -----------------------------------------------------------------------------------------------

    def crash(self, back_after: float) -> None:
        """Agent and ranks are killed; the agent is started again later, with its memory."""
        if not self.lives:
            return
        self.world.tell(f"{self.name} is killed")
        self.lives = self.ranks.alive = False
        self._waiting.clear()
        self.link.close()
        self.world.after(back_after, self._come_back)

    def lose(self, back_after: float) -> None:
        """The machine is gone, with its memory and a head that runs there; no connection is closed. It comes back."""
        self.world.tell(f"machine {self.name} is lost")
        self.way.cut(up=True, down=True, seconds=back_after)
        self.down, self.memory = True, Memory()
        self.job.kill_heads(self)
        self.crash(back_after)
        self.world.after(back_after, self._boot)

    def _boot(self) -> None:
        self.down = False

    def cut(self, *, up: bool, down: bool, seconds: float) -> None:
        """Its link carries nothing in one or both directions for a while."""
        self.world.tell(f"the link of {self.name} is cut (up: {up}, down: {down}) for {seconds:.1f} s")
        self.way.cut(up=up, down=down, seconds=seconds)

    def freeze(self, seconds: float) -> None:
        """Everything on it stops for a while."""
        self.world.tell(f"{self.name} freezes for {seconds:.1f} s")
        self._frozen += 1
        self.world.after(seconds, self._thaw)

    def _thaw(self) -> None:
        self._frozen -= 1
        self.thawed_at = self.world.now
        if self.awake:
            waiting, self._waiting = self._waiting, []
            for happen in waiting:
                happen()

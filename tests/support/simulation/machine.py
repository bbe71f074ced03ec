"""A node: the real agent, over ranks that only count, whose memory outlives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ftlaunch.nodes.agent.agent import Agent
from ftlaunch.nodes.agent.head_search import HeadSearch
from ftlaunch.nodes.cluster.membership.facts import NodeFacts
from tests.support.simulation.agent_link import SimLink
from tests.support.simulation.copier import SimCopier
from tests.support.simulation.ranks import Memory, Ranks
from tests.support.simulation.storage import STALE
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


class Machine:
    """One node."""

    def __init__(self, job: Job, name: str, rate: float) -> None:
        self.job, self.name, self.world = job, name, job.world
        self.clock = MachineClock(job.world, rate)
        self.way = job.way(self)
        self.memory = Memory()
        self.wall = job.world.random.uniform(-3600.0, 3600.0)
        """seconds by which its clock on the wall is ahead"""
        self.lives, self.down, self._frozen, self._stalled, self._boots = False, False, 0, 0, 0
        self.ranks, self.copier = Ranks(self), SimCopier(self)
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

    @property
    def agent_awake(self) -> bool:
        """Its agent runs."""
        return self.lives and not self._frozen and not self._stalled

    @property
    def boot(self) -> str:
        """Names the machine since it has been started: see claims.this_machine."""
        return f"{self.name}, boot {self._boots}"

    def when_awake(self, handler: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        """What comes while it is frozen is heard afterwards."""

        def heard(message: dict[str, Any]) -> None:
            if self.agent_awake:
                handler(message)
            elif self.lives:
                self._waiting.append(lambda: handler(message))

        return heard

    def start(self) -> None:
        """Start the agent; what an earlier one has left running was ended with it."""
        self.lives, self.code = True, None
        self.ranks, self.copier = Ranks(self), SimCopier(self)
        hello: dict[str, Any] = {"job": "sim", "host": self.name, "rank": -1, "probe": 1, "warnings": []}
        hello["topology"] = self.name
        hello["facts"] = replace(FACTS, machine=self.name).as_dict()
        search = HeadSearch(lambda order: self.job.claims.order(self, search, order), self.clock, self.boot, STALE)
        self.search = search
        told: Any = self._make_link, self.ranks, Helpers(self), search, hello, self.say
        agent = Agent(self.job.spec, self.clock, *told)
        self.agent = agent
        search.start_head()
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
        wait = 0.1
        if self.agent_awake:
            agent.look()
            if agent.over:
                self._leave(agent)
                return
            wait = max(0.01, self.clock.until(agent.next_look()))
        self.world.after(wait + self.world.random.random() * 0.03, self._tick, agent)

    def _leave(self, agent: Agent) -> None:
        self.code, self.lives = agent.code, False
        self.ranks.alive = False
        self.link.close()
        self.world.tell(f"{self.name} ends with {self.code}")
        if agent.dismissed:
            self.memory, self.code = Memory(), None
            self.world.after(self.world.random.uniform(1.0, 5.0), self._come_back)

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
        self._boots += 1
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
        self.world.after(seconds, self._thaw, 1, 0)

    def stall(self, seconds: float) -> None:
        """SIGSTOP to the agent for a while; its ranks go on."""
        self.world.tell(f"the agent of {self.name} is stopped for {seconds:.1f} s")
        self._stalled += 1
        self.world.after(seconds, self._thaw, 0, 1)

    def _thaw(self, frozen: int, stalled: int) -> None:
        self._frozen -= frozen
        self._stalled -= stalled
        self.thawed_at = self.world.now
        if self.agent_awake:
            waiting, self._waiting = self._waiting, []
            for happen in waiting:
                happen()

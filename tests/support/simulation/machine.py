"""A simulated node: the real agent, over ranks that only count and memory that outlives them.

The simulated world calls `Machine` in its one thread; the faults of a story are methods of `Machine`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ftlaunch.nodes.agent.agent import Agent
from ftlaunch.nodes.agent.head_search import HeadSearch
from ftlaunch.nodes.agent.node.own_files import OwnFiles
from ftlaunch.nodes.cluster.log_pieces import BUSY
from ftlaunch.nodes.cluster.membership.facts import NodeFacts
from tests.support.fakes.files import FilesInPlace
from tests.support.simulation.agent_link import SimLink
from tests.support.simulation.copier import SimCopier
from tests.support.simulation.ranks import Memory, Ranks
from tests.support.simulation.storage import STALE
from tests.support.simulation.world import MachineClock

if TYPE_CHECKING:
    from tests.support.simulation.job import Job
    from tests.support.simulation.votes import SimVoter

FACTS = NodeFacts(ftlaunch="0.1", python="3.11.4", torch="2.13.0", script="abc", machine="m0")


class Helpers:
    """Helpers of a node, in place of `NodeHelpers`, which do everything at once."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.voter = machine.job.claims.voter_of(machine)

    def may_begin(self, now: float) -> bool:
        """Return True: the fork server is always ready."""
        return True

    def ask_saver(self, request: dict[str, Any], slot_dirs: object) -> None:
        """Do nothing: the head's simulated saver saves."""

    def collect(self, number: int, request: object) -> None:
        """Report a finished autopsy at once."""
        self._machine.link.send("collected", number=number)

    def collect_no_more(self, number: int) -> None:
        """Do nothing: no autopsy is ever under way."""

    def poll(self, now: float) -> None:
        """Do nothing: no helper has anything to report."""


class Machine:
    """One node, whose agent starts, ends and starts again."""

    def __init__(self, job: Job, name: str, rate: float) -> None:
        """Build a node without an agent; `start` starts the agent. rate: seconds of the node's clock in a second."""
        self.job = job
        self.name = name
        self.world = job.world
        self.clock = MachineClock(job.world, rate)
        self.way = job.way(self)
        self.memory = Memory()
        self.wall = job.world.random.uniform(-3600.0, 3600.0)
        """seconds by which the node's wall clock is ahead"""
        self.lives = False  # whether the agent's process exists
        self.down = False  # whether the machine itself is off
        self._frozen = 0  # faults that freeze the machine at this moment
        self._stalled = 0  # faults that stop the agent at this moment
        self._boots = 0
        self.ranks = Ranks(self)
        self.copier = SimCopier(self)
        self.voter: SimVoter | None = None
        self.code: int | None = None
        self._waiting: list[Callable[[], None]] = []  # messages for an agent that is stopped
        self.thawed_at = -1.0  # when a freeze or stop was last over, in seconds of the world

    @property
    def frozen(self) -> bool:
        """Whether nothing on the machine runs."""
        return self._frozen > 0

    @property
    def awake(self) -> bool:
        """Whether the processes of the node run."""
        return self.lives and not self._frozen

    @property
    def agent_awake(self) -> bool:
        """Whether the agent runs, and is neither frozen nor stopped."""
        return self.lives and not self._frozen and not self._stalled

    @property
    def boot(self) -> str:
        """The name of the machine since its last boot, as `claims.this_machine` names a real one."""
        return f"{self.name}, boot {self._boots}"

    def when_awake(self, handler: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        """Return a handler that keeps messages for an agent that is stopped, until the agent runs again."""

        def handle(message: dict[str, Any]) -> None:
            if self.agent_awake:
                handler(message)
            elif self.lives:
                self._waiting.append(lambda: handler(message))

        return handle

    def start(self) -> None:
        """Start the agent. The ranks of an earlier agent have ended with that agent."""
        self.lives = True
        self.code = None
        self.ranks = Ranks(self)
        self.copier = SimCopier(self)
        hello: dict[str, Any] = {"job": "sim", "host": self.name, "rank": -1, "probe": 1, "warnings": []}
        hello["topology"] = self.name
        hello["facts"] = replace(FACTS, machine=self.name).as_dict()
        search = HeadSearch(lambda order: self.job.claims.order(self, search, order), self.clock, self.boot, STALE)
        self.search = search
        agent = Agent(
            spec=self.job.spec,
            clock=self.clock,
            make_link=self._make_link,
            ranks=self.ranks,  # type: ignore[arg-type]
            helpers=Helpers(self),  # type: ignore[arg-type]
            search=search,
            own_files=OwnFiles(self.job.spec, FilesInPlace(), _send_nothing, self.say),
            serve_logs=lambda request, reply: reply(dict(BUSY)),
            hello=hello,
            say=self.say,
        )
        self.agent = agent
        search.start_head()
        self._tick(agent)

    def say(self, sentence: str) -> None:
        """Note a sentence that the agent writes to its terminal."""
        self.world.record(f"{self.name}: {sentence}")

    def _make_link(self, on_message: Any, on_ready: Any) -> Any:
        self.link = SimLink.__new__(SimLink)
        self.link.__init__(self, on_message, on_ready)  # type: ignore[misc] - the link asks for itself while it is made
        return self.link

    def _tick(self, agent: Agent) -> None:
        if agent is not self.agent or not self.lives:
            return
        wait = 0.1
        if self.agent_awake:
            agent.poll()
            if agent.over:
                self._leave(agent)
                return
            wait = max(0.01, self.clock.until(agent.next_poll_at()))
        self.world.after(wait + self.world.random.random() * 0.03, self._tick, agent)

    def _leave(self, agent: Agent) -> None:
        self.code = agent.code
        self.lives = False
        self.ranks.alive = False
        self.link.close()
        self.world.record(f"{self.name} ends with {self.code}")
        if agent.dismissed:
            self.memory = Memory()
            self.code = None
            self.world.after(self.world.random.uniform(1.0, 5.0), self._come_back)

    def _come_back(self) -> None:
        if not self.lives and not self.job.over:
            self.start()

    # --- faults -----------------------------------------------------------------------------------------------

    def crash(self, back_after: float) -> None:
        """Kill the agent and its ranks; start the agent again after `back_after` seconds, with the node's memory."""
        if not self.lives:
            return
        self.world.record(f"{self.name} is killed")
        self.lives = self.ranks.alive = False
        self._waiting.clear()
        self.link.close()
        self.world.after(back_after, self._come_back)

    def lose(self, back_after: float) -> None:
        """Lose the machine, with its memory and a head on it, but close no connection; an empty machine comes back."""
        self.world.record(f"machine {self.name} is lost")
        self.way.cut(up=True, down=True, seconds=back_after)
        self.down = True
        self.memory = Memory()
        self._boots += 1
        self.job.claims.empty_disk(self)
        self.job.kill_heads(self)
        self.crash(back_after)
        self.world.after(back_after, self._boot)

    def _boot(self) -> None:
        self.down = False

    def cut(self, *, up: bool, down: bool, seconds: float) -> None:
        """Have the node's link carry nothing, in one or both directions, for some seconds."""
        self.world.record(f"the link of {self.name} is cut (up: {up}, down: {down}) for {seconds:.1f} s")
        self.way.cut(up=up, down=down, seconds=seconds)

    def freeze(self, seconds: float) -> None:
        """Freeze the whole machine for some seconds."""
        self.world.record(f"{self.name} freezes for {seconds:.1f} s")
        self._frozen += 1
        self.world.after(seconds, self._thaw, 1, 0)

    def stall(self, seconds: float) -> None:
        """Stop the agent, as by SIGSTOP, for some seconds; its ranks train on."""
        self.world.record(f"the agent of {self.name} is stopped for {seconds:.1f} s")
        self._stalled += 1
        self.world.after(seconds, self._thaw, 0, 1)

    def _thaw(self, frozen: int, stalled: int) -> None:
        self._frozen -= frozen
        self._stalled -= stalled
        self.thawed_at = self.world.now
        if self.agent_awake:
            waiting = self._waiting
            self._waiting = []
            for handle in waiting:
                handle()


def _send_nothing(do: str, **fields: Any) -> None:
    """Ignore files of a node: all nodes of a story share the run dir."""

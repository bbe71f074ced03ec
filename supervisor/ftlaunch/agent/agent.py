"""The agent of a node: it does what the head says, tells what happens, and ends its ranks where it has lost the head.

It decides nothing that concerns other nodes.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any

from ftlaunch.agent.head_link import HeadLink
from ftlaunch.agent.node_helpers import NodeHelpers
from ftlaunch.agent.node_ranks import NodeRanks
from ftlaunch.cluster.cluster import FENCE
from ftlaunch.cluster.fences import Fences
from ftlaunch.common.signal_names import signal_name
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch_contract.protocol import EXIT_GIVEN_UP, EXIT_SAVED, EXIT_STOPPED, EXIT_USAGE

_TICK = 0.1  # seconds between looks at the pages
_FAST_TICK = 0.01  # while ranks start or end
_RETURN = 30.0  # seconds for which an agent that has lost its head looks for it, unless the head is known to be dead


class Agent:
    """What the event loop of a node works for."""

    def __init__(
        self,
        spec: JobSpec,
        clock: Callable[[], float],
        make_link: Callable[[Callable[[dict[str, Any]], None], Callable[[], None]], HeadLink],
        ranks: NodeRanks,
        helpers: NodeHelpers,
        hello: Mapping[str, Any],
        say: Callable[[str], None],
    ) -> None:
        """make_link: given what takes messages, and what is told of each connection. hello: its constant fields."""
        self._spec, self._clock, self._ranks, self._helpers = spec, clock, ranks, helpers
        self._hello, self._say = hello, say
        self.code: int | None = None
        """the exit code, once the agent's part is over"""
        self.keep = True
        """memory holds what storage does not"""
        self._looked = 0.0
        self._answered = 0.0  # when the newest beat was sent that the head is known to have heard
        self._lost: Fences | None = None  # the ranks are ended, for want of a head: until when it may come back
        self._settled = self._told_ready = self._interrupted = self._stopping = False
        self._ending: int | None = None  # the ranks are being ended; then it is over with this code
        self.link = make_link(self._on_message, self._on_head)

    # --- for the event loop -----------------------------------------------------------------------------------

    def take(self, event: object) -> None:
        """Nothing is posted."""

    @property
    def over(self) -> bool:
        """Whether its part is over."""
        return self.code is not None

    def next_look(self) -> float:
        """When to look again at the latest."""
        fast = not self._ranks.cleared or not self._told_ready
        return self._looked + (_FAST_TICK if fast and self._is_hurried() else _TICK)

    def _is_hurried(self) -> bool:
        return self._ending is not None or not self._told_ready or self._stopping

    def look(self) -> None:
        """See what the ranks and helpers do, and for how long there has been no head."""
        now = self._clock()
        self._settle(now)
        if self._ending is not None:
            self._ranks.look()
            if self._ranks.cleared:
                self.code = self._ending
            return
        if now >= self._looked + (_FAST_TICK if self._is_hurried() else _TICK) or not self._ranks.cleared:
            self._looked = now
            if self.link.alone_since is None or self._lost is not None:
                self._ranks.look()
        self._helpers.look()
        self._watch_head(now)

    def _settle(self, now: float) -> None:
        if not self._settled and self._helpers.may_begin(now):
            self._settled = True
        if self._settled and not self._told_ready and self.link.alone_since is None:
            self._told_ready = True
            self.link.send("ready")

    def _watch_head(self, now: float) -> None:
        """An agent without a head ends its ranks, in time for the head to start others: see CLUSTER FENCE."""
        link, nodes = self.link, self._spec.nodes
        if not link.was_met:
            if link.alone_since is not None and now - link.alone_since > nodes.wait:
                self._say(f"cannot join: nobody answers at {link.endpoint} for {nodes.wait:g} s ({link.why})")
                self.code = EXIT_GIVEN_UP
        elif self._lost is not None:
            if self._lost.all_down(now):
                self._end(EXIT_SAVED)
        elif now - self._answered > nodes.timeout + FENCE:
            link.give_up(f"it has not answered for {now - self._answered:.1f} s")
            self._say(
                f"the head at {link.endpoint} is gone ({link.why}): ending this node's ranks; their newest"
                " steps stay in memory, and the same command goes on from there"
            )
            self._ranks.kill()
            self._lost = Fences()
            self._lost.add(*link.target, now + min(_RETURN, nodes.wait))

    def _end(self, code: int) -> None:
        """Kill the ranks; the agent is over once they are gone."""
        self._ending = code
        self._ranks.kill()

    # --- what the head says -----------------------------------------------------------------------------------

    def _on_head(self) -> None:
        """There is a head that knows nothing of this node: what still runs here is of no attempt of it."""
        self._ranks.kill()
        self._answered, self._lost = self._clock(), None
        self._ranks.tell_all_words_again()
        held, slots = self._ranks.held()
        self._told_ready = False
        self.link.send("hello", **self._hello, port=self._ranks.free_port(), held=held, slots=slots)

    def _on_message(self, message: dict[str, Any]) -> None:
        ranks, do = self._ranks, message["do"]
        if do == "spawn":
            ranks.spawn(message)
        elif do == "heard":
            self._answered = max(self._answered, message["now"])
        elif do == "pages":
            self._stopping = self._stopping or message["verb"] in ("stop", "leave")
            ranks.perform(message["verb"], message["values"])
        elif do == "leave":
            ranks.leave()
        elif do == "kill":
            ranks.kill()
        elif do == "saver":
            self._helpers.ask_saver(message["request"], ranks.slot_dirs)
        elif do == "collect":
            self._helpers.collect(message["number"], message["request"])
        elif do == "collect_no_more":
            self._helpers.collect_no_more(message["number"])
        elif do == "refused":
            self._say(f"cannot join: {message['why']}")
            self.code = EXIT_USAGE
        elif do == "done":
            self.code, self.keep = message["code"], bool(message["keep"])

    # --- what comes from outside ------------------------------------------------------------------------------

    def on_signals(self, numbers: bytes) -> None:
        """Signals to this process: the head is asked to stop the job."""
        for number in numbers:
            if self._interrupted and number == signal.SIGINT:
                self.link.send("hurry")
            self._interrupted = number == signal.SIGINT
            self.ask_stop(f"{signal_name(number)} to the agent of {self._hello['host']}")

    def ask_stop(self, why: str) -> None:
        """Ask the head to stop the job; without a head there is nothing to be stopped but this node."""
        if self.link.alone_since is None:
            self.link.send("stop", why=why)
        elif self.link.was_met:
            self._end(EXIT_SAVED)
        else:
            self._say(f"{why}: it had not joined the job yet")
            self.code = EXIT_STOPPED

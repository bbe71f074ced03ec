"""The agent of a node: it does what the head says, tells what happens, and ends its ranks where it has lost the head.

It decides nothing that concerns other nodes.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from ftlaunch.common.signal_names import signal_name
from ftlaunch.nodes.agent.head_link import HeadLink
from ftlaunch.nodes.agent.head_search import HeadSearch
from ftlaunch.nodes.agent.lease import Lease
from ftlaunch.nodes.agent.node.node_helpers import NodeHelpers
from ftlaunch.nodes.agent.node.node_ranks import AgentRanks
from ftlaunch.nodes.cluster.cluster import FENCE
from ftlaunch.nodes.cluster.membership.shared_dirs import NOT_SEEN, SharedDirs
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.job_token import TOKEN_VARIABLE
from ftlaunch_contract.protocol import EXIT_GIVEN_UP, EXIT_SAVED, EXIT_STOPPED, EXIT_USAGE

_TICK = 0.1  # seconds between looks at the pages
_FAST_TICK = 0.01  # while ranks start or end
_MOST_BROKEN_OFF = 8  # handshakes in a row: one or two may be a head's that begins or ends
_QUIETLY = 10.0  # seconds for which a first head is looked for without a word
_HEADLESS = 30.0  # seconds for which an agent that has lost its head looks for it, or for another one
_MOST_FAILURES, _FAILURES_SECONDS = 5, 60.0  # system calls that may fail within so many seconds


class Agent:
    """What the event loop of a node works for."""

    def __init__(
        self,
        spec: JobSpec,
        clock: Callable[[], float],
        make_link: Callable[[Callable[[dict[str, Any]], None], Callable[[], None]], HeadLink],
        ranks: AgentRanks,
        helpers: NodeHelpers,
        search: HeadSearch,
        hello: Mapping[str, Any],
        say: Callable[[str], None],
    ) -> None:
        """make_link: given what takes messages, and what is told of each connection. hello: its constant fields."""
        self._spec, self._clock, self._ranks, self._helpers = spec, clock, ranks, helpers
        self._hello, self._say, self._search = hello, say, search
        self._term = -1  # of the newest head that is known to be one
        self.code: int | None = None
        """the exit code, once the agent's part is over"""
        self.keep = True
        """memory holds what storage does not"""
        self.on_answer: Callable[[int, Mapping[str, Any]], None] = lambda number, answer: None
        """told what the head has answered to an `ask`"""
        self.beside_head = False
        """the head speaks on the same terminal"""
        self._told_place = ""
        self._failed_at: list[float] = []  # when system calls have failed that nothing expects to fail
        self._told_waiting = self._expired = False  # expired: the lease is over, and the ranks were killed for it
        self._job_stops = False  # a head was told so: the next one must hear of it
        self._looked = self._greeting_until = 0.0  # the latter: until when a head's welcome may be on its way
        self.dismissed = False
        """the job goes on without this node"""
        self._settled = self._told_ready = self._interrupted = self._stopping = False
        self._lease = Lease(spec.nodes.timeout + FENCE, clock())
        self._shared = SharedDirs((spec.run_dir, spec.checkpoint_dir))
        self._ending: int | None = None  # the ranks are being ended; then it is over with this code
        self.link = make_link(self._on_message, self._on_head)

    # --- for the event loop -----------------------------------------------------------------------------------

    def take(self, event: object) -> None:
        """Nothing is posted."""

    def fail(self, error: Exception) -> None:
        """Meet the head anew where a system call has failed that nothing in the loop expects to fail.

        What the call was for may be half done, and the head may wait for word of it: both sides begin anew from what
        this node says of itself. Raises `error` where it is no OSError, or one of too many: the head takes this node
        for lost.
        """
        now = self._clock()
        self._failed_at = [when for when in self._failed_at if now - when < _FAILURES_SECONDS] + [now]
        if not isinstance(error, OSError) or len(self._failed_at) > _MOST_FAILURES:
            raise error
        self._say(f"a system call of this node's agent has failed ({error}): the agent meets the head anew")
        self.link.renew("a system call of its agent has failed")

    @property
    def over(self) -> bool:
        """Whether its part is over."""
        return self.code is not None

    def next_look(self) -> float:
        """When to look again at the latest."""
        fast = not self._ranks.cleared or not self._told_ready
        return self._looked + (_FAST_TICK if fast and self._is_hurried() else _TICK)

    def _is_hurried(self) -> bool:
        return self._ending is not None or not self._told_ready or self._stopping or self._ranks.clearing

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
            beat = self._ranks.look()
            if beat is not None and self.link.alone_since is None:
                self._lease.sent(beat, now)
        self._helpers.look(now)
        self._search.look(now, self._ranks.place)
        self._heed_sign()
        self._judge_shared(now)
        if self._ending is None:
            self._watch_head(now)

    def _settle(self, now: float) -> None:
        self._settled = self._settled or self._helpers.may_begin(now)
        if self._settled and self._shared.proven and not self._told_ready and self.link.alone_since is None:
            self._told_ready = True
            self.link.send("ready")

    def _judge_shared(self, now: float) -> None:
        """End where the word of this node's head is not to be seen here, though no other head has left its own."""
        apart = None if self._shared.proven or self.link.alone_since is not None else self._shared.look(now)
        if apart is not None and self._search.has_looked_since(self._shared.until):
            why = f"{apart} is not shared with the node of the head at {self.link.endpoint}"
            self.link.send("unfit", why=f"{why} ({self._hello['host']})")
            self._say(f"cannot take part: {why}: {NOT_SEEN}")
            self.code = EXIT_USAGE

    def _watch_head(self, now: float) -> None:
        """An agent that no head hears ends its ranks before the head starts others in their place: see `Lease`."""
        nodes, since = self._spec.nodes, self.link.alone_since
        if self._expire(now):
            self.link.renew("it did not hear this node")
        if since is not None and self.link.refused and self.link.at_home and now - since < _HEADLESS:
            # Not a refusal from elsewhere: it may be a firewall's. And storage must have shown no head elsewhere.
            self._lease.renew(min(self.link.tried_at, self._search.looked))
        if since is None or not self._ranks.cleared:
            return
        if not self.link.was_met:
            self._wait_for_first_head(now - since)
        elif now - since > min(_HEADLESS, nodes.wait):
            self._say(
                f"the head at {self.link.endpoint} is gone ({self.link.why}): the newest steps of this node's ranks"
                " stay in memory, and the same command goes on from there"
            )
            self.code = EXIT_SAVED

    def _wait_for_first_head(self, waited: float) -> None:
        """This node has not taken part yet: say what it waits for, and when it does so no longer."""
        nodes, link = self._spec.nodes, self.link
        if self._search.unusable:
            self.code = EXIT_USAGE
        elif link.broken_off >= _MOST_BROKEN_OFF or (link.broken_off and waited > nodes.wait):
            where = TOKEN_VARIABLE if nodes.token else f"the file `token` in {self._spec.run_dir}"
            self._say(
                f"cannot take part: the head at {link.endpoint} does not accept this node's token ({where}):"
                f" all nodes must share that run dir, or be given the same {TOKEN_VARIABLE}"
            )
            self.code = EXIT_USAGE
        elif waited > nodes.wait:
            self._say(f"cannot join: no head answers at {link.endpoint} for {nodes.wait:g} s ({link.why})")
            self.code = EXIT_GIVEN_UP
        elif waited > _QUIETLY and not self._told_waiting:
            self._told_waiting = True
            self._say(
                f"no head answers at {link.endpoint} yet ({link.why}): this node tries again and again, for"
                f" {nodes.wait:g} s at most (--node-wait)"
            )

    def _expire(self, now: float) -> bool:
        """Kill the ranks where the lease is over; whether they were killed now."""
        if self._ranks.cleared or self._expired or not self._lease.is_over(now):
            return False
        self._expired = True
        self._say(f"no head hears this node ({self.link.why}): ending its ranks; their newest steps stay in memory")
        self._ranks.kill()
        return True

    def _heed_sign(self) -> None:
        """Go where the newest head is; where the job has ended meanwhile, end as all its nodes do."""
        sign = self._search.sign
        if sign is None or sign.term < self._term:
            return
        if sign.ended:
            if self._term >= 0 and self.link.alone_since is not None:
                self.keep = sign.over != 0
                self._end(sign.over)
        elif self.link.alone_since is None and self._clock() < self._greeting_until:
            return  # this may be its head already, met at another of its addresses
        elif sign.term > self._term and (self._term >= 0 or self._search.alive):
            self._term = sign.term
            self.link.go_to(sign.address, sign.port)

    def _end(self, code: int) -> None:
        """Kill the ranks; the agent is over once they are gone."""
        self._ending = code
        self._ranks.kill()

    # --- what the head says -----------------------------------------------------------------------------------

    def _on_head(self) -> None:
        """There is a head that knows nothing of this node; what still runs here it takes up, or has killed."""
        self._expire(self._clock())  # an agent that was stopped meets a head before it looks at the time
        self._greeting_until = self._clock() + self._spec.nodes.timeout
        self._ranks.tell_all_words_again()
        memory = self._ranks.memory()
        self._told_ready = self._expired = False
        self._lease = Lease(self._spec.nodes.timeout + FENCE, self._clock())
        self.link.send("hello", **self._hello, port=self._ranks.free_port(), wall=time.time(), **memory)

    def _on_welcome(self, term: int, word: str) -> None:
        if term < self._term:
            self.link.renew("another head has taken its place")
            return
        self._term, self._greeting_until = term, 0.0
        self._shared.begin(word, self._clock())
        self._tell(f"joined: the head at {self.link.endpoint} speaks for the job")
        if self._job_stops:
            self.link.send("stop", why="the job was told to stop before this head took over")

    def _on_message(self, message: dict[str, Any]) -> None:
        ranks, do = self._ranks, message["do"]
        self._search.hear(self._clock())
        if do == "welcome":
            self._on_welcome(message["term"], message["word"])
        elif do == "spawn":
            self._tell_place(message["place"])
            self._stopping = False
            ranks.spawn(message)
        elif do == "heard":
            self._lease.heard(message["number"])
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
        elif do in ("buddy", "copies", "fetch", "keep"):
            ranks.heed_copies(message)
        elif do == "answer":
            self.on_answer(message["number"], message["answer"])
        else:
            self._on_end(do, message)

    def _on_end(self, do: str, message: Mapping[str, Any]) -> None:
        if do == "refused":
            self._say(f"cannot join: {message['why']}")
            self.code = EXIT_USAGE
        elif do == "standby":
            self._tell_standby(message["why"])
        elif do == "stopping":
            self._job_stops = True
        elif do == "dismissed":
            self._say(message["why"])
            self.code, self.keep, self.dismissed = EXIT_SAVED, False, True
        elif do == "done":
            self.code, self.keep = message["code"], bool(message["keep"])
            self._tell(f"the job is over, says the head at {self.link.endpoint}: exit code {self.code}")

    def _tell_place(self, place: Mapping[str, Any]) -> None:
        now = f"this is node {place['node']} of {place['nodes']}"
        if now != self._told_place:
            self._told_place = now
            self._tell(now)

    def _tell_standby(self, why: str) -> None:
        if why != self._told_place:
            self._told_place = why
            self._say(f"this node stands by: {why}")

    def _tell(self, sentence: str) -> None:
        """Tell what the head's own terminal need not be told."""
        if not self.beside_head:
            self._say(sentence)

    # --- what comes from outside ------------------------------------------------------------------------------

    def on_signals(self, numbers: bytes) -> None:
        """Signals to this process: the head is asked to stop the job."""
        for number in numbers:
            if self._interrupted and number == signal.SIGINT:
                self.link.send("hurry")
            self._interrupted = number == signal.SIGINT
            why = f"{signal_name(number)} to the agent of {self._hello['host']}"
            if number == signal.SIGTERM and self.link.alone_since is None:
                self.link.send("drain", why=why)
            else:
                self.ask_stop(why)

    def ask_stop(self, why: str) -> None:
        """Ask the head to stop the job; without a head there is nothing to be stopped but this node."""
        if self.link.alone_since is None:
            self.link.send("stop", why=why)
        elif self.link.was_met:
            self._end(EXIT_SAVED)
        else:
            self._say(f"{why}: it had not joined the job yet")
            self.code = EXIT_STOPPED

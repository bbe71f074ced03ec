"""The agent of a node: obeys the head, reports to it, and ends the node's ranks once the head is lost.

The agent decides nothing that concerns other nodes. `Agent` runs in the agent's process, in the one thread of its event
loop; `ftlaunch.nodes.agent.main` builds the agent and runs the loop.

The head is the process on one of the nodes that runs the job's supervisor. It shows a sign, in the run dir or a meeting
store, with its address and its term: a head that takes over has a higher term. The lease limits how long this node's
ranks go on without a head (lease.py). A rank's page is the shared memory in which the rank reports its steps and gets
its orders; the message `pages` passes orders of the head on to the ranks here. The head that this node itself has
started runs beside the agent, and both write to the same terminal.

The fields of all messages are documented in `ftlaunch.nodes.cluster.messages`. `HeadLink` checks each message on
receipt, and ends the connection because of an unknown or malformed one.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from ftlaunch.common.signal_names import signal_name
from ftlaunch.nodes.agent.head_in_store import HeadInStore
from ftlaunch.nodes.agent.head_link import HeadLink
from ftlaunch.nodes.agent.head_search import HeadSearch
from ftlaunch.nodes.agent.lease import Lease
from ftlaunch.nodes.agent.node.node_helpers import NodeHelpers
from ftlaunch.nodes.agent.node.node_ranks import AgentRanks
from ftlaunch.nodes.agent.node.own_files import OwnFiles
from ftlaunch.nodes.cluster.cluster import FENCE_SECONDS
from ftlaunch.nodes.cluster.log_pieces import BUSY, MOST_QUEUED, Reply, Request
from ftlaunch.nodes.cluster.membership.shared_dirs import SharedDirs
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.job_token import TOKEN_VARIABLE
from ftlaunch_contract.protocol import EXIT_GIVEN_UP, EXIT_SAVED, EXIT_STOPPED, EXIT_USAGE

_TICK_SECONDS = 0.1  # the time between two polls of the pages
_FAST_TICK_SECONDS = 0.01  # the time between two polls while the agent gets ready, or ranks are being ended
# So many broken handshakes in a row mean that the token is wrong. A head that starts or ends may break one or two.
_MOST_BROKEN_OFF = 8
_QUIET_SECONDS = 10.0  # an agent waits this long for its first head before it tells the terminal
_HEADLESS_SECONDS = 30.0  # an agent that has lost its head looks this long for that head or for a new one
_SIGN_SECONDS = 2.0  # within which the sign of a living head changes
_MOST_FAILURES = 5  # the agent survives so many unexpected failures of system calls within _FAILURES_SECONDS
_FAILURES_SECONDS = 60.0


class Agent:
    """What the event loop of a node drives: the state of the node between its head and its ranks."""

    def __init__(
        self,
        spec: JobSpec,
        clock: Callable[[], float],
        make_link: Callable[[Callable[[dict[str, Any]], None], Callable[[], None]], HeadLink],
        ranks: AgentRanks,
        helpers: NodeHelpers,
        search: HeadSearch,
        own_files: OwnFiles,
        serve_logs: Callable[[Request, Reply], None],
        hello: Mapping[str, Any],
        say: Callable[[str], None],
        head_in_store: HeadInStore | None = None,
    ) -> None:
        """Create the agent and start to look for the head.

        Args:
            spec: the job.
            clock: monotonic seconds.
            make_link: creates the connection to the head. Its arguments: a function that is called with each message of
                the head, and a function that is called whenever a connection is ready.
            ranks: the ranks of this node.
            helpers: the saver, the fork server and the autopsy collectors of this node.
            search: looks for the head in the run dir or in a meeting store.
            own_files: the files of this node that the head cannot read, where the run dir is not shared.
            serve_logs: answers a request of the head for pieces of this node's logs, now or later.
            hello: the fields of the message `hello` that stay the same on every connection.
            say: writes a sentence to this node's terminal.
            head_in_store: finds the first head by the checkpoint store; None: the job has none, or meets elsewhere.
        """
        self._spec = spec
        self._head_in_store = head_in_store
        self._clock = clock
        self._ranks = ranks
        self._helpers = helpers
        self._hello = hello
        self._say = say
        self._search = search
        self._own_files = own_files
        self._serve_logs = serve_logs
        self._term = -1  # the term of the newest known head; -1: none is known
        self.code: int | None = None
        """the exit code once the agent's part is over, else None"""
        self.keep = True
        """whether memory holds steps that storage lacks, so that memory must stay"""
        self.on_answer: Callable[[int, Mapping[str, Any]], None] = lambda number, answer: None
        """called with the number and the answer of an `ask` that the head has answered"""
        self.beside_head = False
        """whether the head writes to the same terminal"""
        self._announced_place = ""  # the last sentence about this node's place
        self._failed_at: list[float] = []  # moments of unexpected failures of system calls
        self._announced_waiting = False  # the terminal was told that this node waits for its first head
        self._expired = False  # the lease is over, and the ranks were killed for that
        self._elects = False  # this node's voter is one of those that elect the head
        self._replaced_since: float | None = None  # since when only heads have answered that another one has replaced
        self._job_stops = False  # the job was told to stop, which the next head must hear
        self._polled_at = 0.0  # when the pages were last polled
        self._greeting_until = 0.0  # until when a head's welcome may be on its way
        self.dismissed = False
        """whether the job goes on without this node"""
        self._settled = False  # the helpers are ready: ranks can be started
        self._welcomed = False  # the head has welcomed this node on this connection
        self._sent_ready = False  # the head has been sent `ready` on this connection
        self._interrupted = False  # the last signal was SIGINT: a second one hurries the job
        self._stopping = False  # the ranks were told to stop or to leave
        self._lease = Lease(spec.nodes.timeout + FENCE_SECONDS, clock())
        self._shared = SharedDirs((spec.run_dir, spec.checkpoint_dir))
        self._ending: int | None = None  # the exit code once the killed ranks are gone; None while none is to end
        self.link = make_link(self._on_message, self._on_head)

    # --- for the event loop -----------------------------------------------------------------------------------

    def handle(self, event: object) -> None:
        """Ignore `event`: nothing posts one to an agent's loop."""

    def fail(self, error: Exception) -> None:
        """Renew the connection to the head after an unexpected failure of a system call.

        The failed call may have left something half done, and the head may wait for a message about it. On a new
        connection both sides start from what this node says about itself.

        Raises:
            Exception: `error` itself, if it is no OSError, or if too many system calls have failed lately. The agent
                then ends, and the head counts this node as lost.
        """
        now = self._clock()
        self._failed_at = [when for when in self._failed_at if now - when < _FAILURES_SECONDS] + [now]
        if not isinstance(error, OSError) or len(self._failed_at) > _MOST_FAILURES:
            raise error
        self._say(f"a system call of this node's agent has failed ({error}): the agent meets the head anew")
        self.link.renew("a system call of its agent has failed")

    @property
    def over(self) -> bool:
        """Whether the agent's part is over."""
        return self.code is not None

    def next_poll_at(self) -> float:
        """Return the moment of the next `poll`, in monotonic seconds.

        The fast interval applies until this node has told its head that it is ready, and from then on while the last
        attempt's processes are being ended.
        """
        fast = not self._ranks.cleared or not self._sent_ready
        return self._polled_at + (_FAST_TICK_SECONDS if fast and self._is_hurried() else _TICK_SECONDS)

    def _is_hurried(self) -> bool:
        """Return whether a change is expected soon: this node is not ready yet, or its ranks are being ended."""
        return self._ending is not None or not self._sent_ready or self._stopping or self._ranks.clearing

    def poll(self) -> None:
        """Check the ranks, the helpers, the lease and the search for a head."""
        now = self._clock()
        self._send_ready(now)
        if self._ending is not None:
            self._ranks.poll()
            if self._ranks.cleared:
                self.code = self._ending
            return
        interval = _FAST_TICK_SECONDS if self._is_hurried() else _TICK_SECONDS
        if now >= self._polled_at + interval or not self._ranks.cleared:
            self._polled_at = now
            beat = self._ranks.poll()
            if beat is not None and self.link.alone_since is None:
                self._lease.record_sent(beat, now)
        self._helpers.poll(now)
        self._search.poll(now, self._ranks.place)
        self._follow_sign()
        self._find_shared_dirs(now)
        if self._ending is None:
            self._watch_head(now)

    def _send_ready(self, now: float) -> None:
        """Tell a new head that ranks can start, once the helpers are ready and the shared directories are known."""
        self._settled = self._settled or self._helpers.may_begin(now)
        if not self._welcomed or self.link.alone_since is not None:
            return
        if self._settled and self._shared.are_known and not self._sent_ready:
            self._sent_ready = True
            spec = self._spec
            named = {"run_dir": spec.run_dir, "checkpoint_dir": spec.checkpoint_dir}
            apart = [name for name, directory in named.items() if not self._shared.is_shared(directory)]
            journal = list(self._own_files.begin_copies()) if self._own_files.is_apart else []
            self.link.send("ready", apart=apart, journal=journal)

    def _find_shared_dirs(self, now: float) -> None:
        """Find out whether the run dir and the checkpoint dir are the head's, by a word that the head leaves there.

        A newer head may have overwritten the word; therefore the sign of the newest head is read before a directory
        counts as this node's own. A node that took a shared run dir for its own would overwrite the journal there.
        A checkpoint dir of its own beside a shared run dir is a mistake, unless a store keeps the checkpoints: the
        agent ends.
        """
        if self._shared.are_known or self.link.alone_since is not None:
            return
        if self._shared.is_time_over(now) and self._is_no_other_head_alive():
            self._shared.give_up()
        if not self._shared.are_known:
            return
        spec = self._spec
        is_apart = not self._shared.is_shared(spec.run_dir)
        self._own_files.is_apart = is_apart
        self._search.may_replace_head = self._search.in_store or self._elects or not is_apart
        if not is_apart and self._shared.apart and spec.saving.checkpoint_store is None:
            why = f"{spec.checkpoint_dir} is not shared with the node of the head at {self.link.endpoint}"
            self.link.send("unfit", why=f"{why} ({self._hello['host']})")
            self._say(
                f"cannot take part: {why}, and the run dir is: give a `checkpoint_dir` that all nodes share, or the"
                " address of a store (s3://BUCKET/PREFIX)"
            )
            self.code = EXIT_USAGE

    def _is_no_other_head_alive(self) -> bool:
        """Return whether the sign, read once the time for the word was over, is not a living head's of a higher term.

        The sign of a living head changes several times a second; one that an earlier job has left stands still.
        """
        search = self._search
        until = self._shared.until
        if not search.ensure_read_since(until):
            return False
        sign = search.sign
        if sign is None or sign.ended or sign.term <= self._term:
            return True
        return search.ensure_read_since(until + _SIGN_SECONDS) and not search.alive

    def _watch_head(self, now: float) -> None:
        """Kill the ranks when the lease is over, and end the agent when no head has been found for too long."""
        nodes = self._spec.nodes
        since = self.link.alone_since
        if since is not None and self._replaced_since is not None:
            since = min(since, self._replaced_since)
        if self._expire(now):
            self.link.renew("it did not hear this node")
        if since is not None and self.link.refused and self.link.at_home and now - since < _HEADLESS_SECONDS:
            # This machine's own kernel refused the connection: no head listens here. A refusal by another machine
            # proves nothing, because it may come from a firewall. The search must also have seen no newer head on
            # storage.
            self._lease.renew(min(self.link.tried_at, self._search.read_at))
        if since is None or not self._ranks.cleared:
            return
        if not self.link.was_met:
            self._wait_for_first_head(now - since)
        elif now - since > min(_HEADLESS_SECONDS, nodes.wait):
            self._say(
                f"the head at {self.link.endpoint} is gone ({self.link.why}): the newest steps of this node's ranks"
                " stay in memory, and the same command goes on from there"
            )
            self.code = EXIT_SAVED

    def _wait_for_first_head(self, waited: float) -> None:
        """Tell the terminal what this node waits for, and end the agent when waiting has become pointless."""
        nodes = self._spec.nodes
        link = self.link
        is_away = False
        if self._head_in_store is not None and self._term < 0:  # no sign shows another way
            self._head_in_store.poll(link, waited)
            is_away = self._head_in_store.is_away
        if self._search.unusable:
            self.code = EXIT_USAGE
        elif not is_away and (link.broken_off >= _MOST_BROKEN_OFF or (link.broken_off and waited > nodes.wait)):
            where = TOKEN_VARIABLE if nodes.token else f"the file `token` in {self._spec.run_dir}"
            where = where if nodes.authenticates else "auth=none"
            self._say(
                f"cannot take part: the head at {link.endpoint} does not accept this node's token ({where}): give all"
                f" nodes the same {TOKEN_VARIABLE}, or a run dir that they share, or, where only you can reach their"
                " ports, `--rdzv-conf auth=none`"
            )
            self.code = EXIT_USAGE
        elif waited > nodes.wait:
            self._say(f"cannot join: no head answers at {link.endpoint} for {nodes.wait:g} s ({link.why})")
            self.code = EXIT_GIVEN_UP
        elif waited > _QUIET_SECONDS and not self._announced_waiting:
            self._announced_waiting = True
            self._say(
                f"no head answers at {link.endpoint} yet ({link.why}): this node tries again and again, for"
                f" {nodes.wait:g} s at most (--node-wait)"
            )

    def _expire(self, now: float) -> bool:
        """Kill the ranks if the lease is over. Return whether this call killed them."""
        if self._ranks.cleared or self._expired or not self._lease.is_over(now):
            return False
        self._expired = True
        self._say(f"no head hears this node ({self.link.why}): ending its ranks; their newest steps stay in memory")
        self._ranks.kill()
        return True

    def _follow_sign(self) -> None:
        """Connect to the head that the newest sign names, or end with the job's exit code if the sign carries one."""
        sign = self._search.sign
        if sign is None or sign.term < self._term or not self._is_sign_of_this_job():
            return
        if sign.ended:
            if self._term >= 0 and self.link.alone_since is not None:
                self.keep = sign.over != 0
                self._end(sign.over)
        elif self.link.alone_since is None and self._clock() < self._greeting_until:
            return  # the connected head may be the sign's own, reached at another of its addresses
        elif sign.term > self._term and (self._term >= 0 or self._search.alive):
            self._term = sign.term
            self.link.go_to(sign.address, sign.port)

    def _is_sign_of_this_job(self) -> bool:
        """Return whether the newest sign cannot be what an earlier job has left in this node's run dir.

        A sign that changes is a living head's. Any other sign counts where the run dir is proven to be shared, in a
        meeting store, and as long as no head was met.
        """
        search = self._search
        return search.in_store or search.alive or self._term < 0 or self._shared.is_shared(self._spec.run_dir)

    def _end(self, code: int) -> None:
        """Kill the ranks. The agent is over, with exit code `code`, once the ranks are gone."""
        self._ending = code
        self._ranks.kill()

    # --- what the head says -----------------------------------------------------------------------------------

    def _on_head(self) -> None:
        """Introduce this node on a new connection.

        The head knows nothing about this node yet. The head either adopts the ranks that still run here or has them
        killed.
        """
        self._expire(self._clock())  # an agent that was frozen may reach a head before its first look at the clock
        self._greeting_until = self._clock() + self._spec.nodes.timeout
        self._ranks.resend_all_words()
        memory = self._ranks.describe_memory()
        self._welcomed = self._sent_ready = self._expired = False
        self._lease = Lease(self._spec.nodes.timeout + FENCE_SECONDS, self._clock())
        self.link.send("hello", **self._hello, port=self._ranks.find_free_port(), wall=time.time(), **memory)

    def _on_welcome(self, term: int, word: str) -> None:
        """Accept the head of a term, unless a newer head is known.

        Args:
            term: the head's term.
            word: the word that the head has left in the directories that all nodes share.
        """
        if term < self._term:
            if self._replaced_since is None:
                self._replaced_since = self._clock()
            self.link.renew("another head has taken its place", slowly=True)
            return
        self._replaced_since = None
        self._term = term
        self._welcomed = True
        self._greeting_until = 0.0
        self._shared.begin(word, self._clock())
        self._say_unless_beside_head(f"joined: the head at {self.link.endpoint} speaks for the job")
        if self._job_stops:
            self.link.send("stop", why="the job was told to stop before this head took over")

    def _on_message(self, message: dict[str, Any]) -> None:
        """Obey a message of the head. `HeadLink` has checked its name and fields."""
        ranks = self._ranks
        do = message["do"]
        self._search.record_message(self._clock())
        if do == "welcome":
            self._on_welcome(message["term"], message["word"])
        elif do == "spawn":
            self._announce_place(message["place"])
            self._stopping = False
            ranks.spawn(message)
        elif do == "heard":
            self._lease.confirm(message["number"])
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
        elif do == "logs":
            self._send_log_piece(message["number"], message["request"])
        elif do == "copy":
            self._keep_copy(message)
        elif do == "collect_no_more":
            self._helpers.collect_no_more(message["number"])
        elif do in ("buddy", "copies", "fetch", "keep"):
            ranks.forward_to_copier(message)
        elif do == "answer":
            self.on_answer(message["number"], message["answer"])
        else:
            self._on_membership(do, message)

    def _send_log_piece(self, number: int, request: Mapping[str, Any]) -> None:
        """Have a request for logs answered, which may take until the file system answers."""

        def reply(answer: dict[str, Any]) -> None:
            is_busy = self.link.queued > MOST_QUEUED
            self.link.send("logs", number=number, answer=dict(BUSY) if is_busy else answer)

        self._serve_logs(request, reply)

    def _keep_copy(self, message: Mapping[str, Any]) -> None:
        try:
            self._own_files.keep_copy(message)
        except ValueError as error:
            self.link.renew(f"the head has sent {error}")

    def _on_membership(self, do: str, message: Mapping[str, Any]) -> None:
        """Obey a message about this node's part in the job: whether the node waits, and whether its part ends."""
        if do == "refused":
            self._say(f"cannot join: {message['why']}")
            self.code = EXIT_USAGE
        elif do == "standby":
            self._announce_standby(message["why"])
        elif do == "elsewhere":
            self._term = -1  # that head counts its terms apart from the one that gives way
            self._search.forget_sign()
            self.link.go_to(message["address"], message["port"])
        elif do == "vote":
            self._helpers.voter.begin(message["term"], message["head"])
        elif do == "voting":
            self._elects = True
            self._search.may_replace_head = True
        elif do == "stopping":
            self._job_stops = True
        elif do == "dismissed":
            self._say(message["why"])
            self.code = EXIT_SAVED
            self.keep = False
            self.dismissed = True
        elif do == "done":
            self.code = message["code"]
            self.keep = bool(message["keep"])
            self._own_files.forget_plan()
            self._say_unless_beside_head(
                f"the job is over, says the head at {self.link.endpoint}: exit code {self.code}"
            )

    def _announce_place(self, place: Mapping[str, Any]) -> None:
        now = f"this is node {place['node']} of {place['nodes']}"
        if now != self._announced_place:
            self._announced_place = now
            self._say_unless_beside_head(now)

    def _announce_standby(self, why: str) -> None:
        if why != self._announced_place:
            self._announced_place = why
            self._say(f"this node stands by: {why}")

    def _say_unless_beside_head(self, sentence: str) -> None:
        """Write a sentence to the terminal, unless the head writes to the same terminal and says as much itself."""
        if not self.beside_head:
            self._say(sentence)

    # --- what comes from outside ------------------------------------------------------------------------------

    def on_signals(self, numbers: bytes) -> None:
        """Ask the head to stop the job, or to drain this node, because of signals to this process.

        Args:
            numbers: one byte for each signal, in the order of arrival.
        """
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
        """Ask the head to stop the job. Without a head, stop only this node."""
        if self.link.alone_since is None:
            self.link.send("stop", why=why)
        elif self.link.was_met:
            self._end(EXIT_SAVED)
        else:
            self._say(f"{why}: it had not joined the job yet")
            self.code = EXIT_STOPPED

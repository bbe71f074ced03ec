"""A pretended agent: a real connection to the real head, and ranks that are only pages.

The agent sends what ftlaunch's agent sends, in the same order, but has no processes, no saver and no copier. All
agents of a process run in one event loop.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pretended_ranks import PretendedRanks
from timed_loop import TimedLoop

from ftlaunch.nodes.agent.head_link import HeadLink
from ftlaunch.nodes.agent.node.exit_reports import ExitReports
from ftlaunch.nodes.channel.framing import OVERHEAD, PREFIX

_SIGTERM = -15
_KILLED = -9
_LEAVES_AFTER = 0.01  # seconds after which ranks end once they are told to
NO_MESSAGE_OF_A_RESTART = ("beat", "heard")
"""messages that come all the time, with or without a restart"""


@dataclass(frozen=True)
class Surroundings:
    """What all pretended agents of a process share."""

    loop: TimedLoop
    endpoint: tuple[str, int]
    token: bytes
    hello: Mapping[str, Any]
    """the fields of `hello` that do not change"""
    ranks_each: int
    step_seconds: float
    beat_seconds: float
    node_timeout: float
    find_head: Callable[[], None]
    """called when nobody listens at the endpoint"""


class Traffic:
    """The messages of one agent, in both directions, since `begin`."""

    def __init__(self) -> None:
        self.counting = False
        self.messages: Counter[str] = Counter()
        self.bytes = 0

    def begin(self) -> None:
        """Start to count from zero."""
        self.counting = True
        self.bytes = 0
        self.messages.clear()

    def note(self, name: str, message: Mapping[str, Any], direction: str) -> None:
        """Count a message with its bytes on the wire. direction: `<` from the head, `>` to the head."""
        if self.counting:
            self.messages[direction + name] += 1
            if name not in NO_MESSAGE_OF_A_RESTART:
                self.bytes += len(json.dumps(message, separators=(",", ":"))) + OVERHEAD + PREFIX


class PretendedAgent:
    """The agent of one node."""

    def __init__(self, number: int, shared: Surroundings, probe: int) -> None:
        """Begin to look for the head.

        Args:
            number: the number of the node.
            shared: what the agents of this process share.
            probe: a port at which nobody listens any more once this agent has ended.
        """
        self.number = number
        self._shared = shared
        self._probe = probe
        self._ranks: PretendedRanks | None = None
        self._place = -1
        self._attempt = -1
        self._lineage = ""
        self._next: Mapping[str, Any] | None = None
        self._beats = 0
        self._silent = self._dead = False
        self._exits = ExitReports(shared.loop, time.monotonic, self._send_exits)
        self.traffic = Traffic()
        self.leave_ordered_at = self.start_ordered_at = 0.0
        """when the newest orders came, in monotonic seconds"""
        self.starts = 0
        self.met = 0.0
        """when the newest welcome came, in monotonic seconds"""
        self.terms: list[int] = []
        self.code: int | None = None
        self.link = HeadLink(
            loop=shared.loop,
            clock=time.monotonic,
            endpoint=shared.endpoint,
            token=shared.token,
            on_message=self._on_message,
            on_ready=self._on_head,
            on_no_listener=self._on_no_listener,
            silence_seconds=shared.node_timeout,
        )
        shared.loop.call_at(time.monotonic() + shared.beat_seconds * (number % 97) / 97, self, self._beat)

    # --- what happens on the node -----------------------------------------------------------------------------

    def lose_rank(self) -> float:
        """Kill the first rank; return when the head was told."""
        assert self._ranks is not None
        rank = self._ranks.numbers[0]
        died = time.monotonic()
        self._end_ranks([rank], _KILLED)
        return died

    def die(self) -> float:
        """Have the whole machine vanish; return when its connection ended."""
        self._dead = True
        self.link.close()
        return time.monotonic()

    def fall_silent(self) -> float:
        """Keep the connection, but send nothing any more; return when that began."""
        self._silent = True
        return time.monotonic()

    def finish(self) -> None:
        """Bring the training of all ranks to its end."""
        if self._ranks is not None:
            self._ranks.finish()
            self._end_ranks(sorted(self._ranks.alive), 0)

    # --- what is said -----------------------------------------------------------------------------------------

    def _send(self, do: str, **fields: Any) -> None:
        if self._silent or self._dead:
            return
        self.traffic.note(do, {"do": do, **fields}, ">")
        self.link.send(do, **fields)

    def _beat(self) -> None:
        if self._dead or self.code is not None:
            return
        now = time.monotonic()
        self._shared.loop.call_at(now + self._shared.beat_seconds, self, self._beat)
        if self._ranks is not None:
            self._ranks.train(now)
        if self.link.alone_since is None:
            self._send_beat()

    def _send_beat(self) -> None:
        self._beats += 1
        words = [] if self._ranks is None else self._ranks.words()
        self._send(
            "beat",
            number=self._beats,
            lineage=self._lineage,
            now=time.monotonic(),
            words=words,
            noted=[],
            stopped=[],
        )

    def _end_ranks(self, ranks: list[int], code: int) -> None:
        """Report the ends of some ranks."""
        assert self._ranks is not None
        for rank in ranks:
            self._ranks.alive.discard(rank)
            self._exits.add(self._attempt, rank, code, is_last=not self._ranks.alive)
        if ranks and not self._ranks.alive:
            slots = self._ranks.slots()
            self._send(
                "gone", attempt=self._attempt, port=20000 + self.number, slots=slots, evidence={}, awaits_memory=0
            )
            if self._next is not None:
                waiting = self._next
                self._next = None
                self._spawn(waiting)

    def _send_exits(self, attempt: int, codes: Mapping[int, int]) -> None:
        self._send_beat()
        self._send("exits", attempt=attempt, codes=codes)

    # --- what the head says -----------------------------------------------------------------------------------

    def _on_no_listener(self) -> None:
        self._shared.find_head()

    def _on_head(self) -> None:
        if self._silent:
            self.link.close()
            return
        ranks = self._ranks
        slots: Mapping[int, list[int]] = {}
        held: list[int] = []
        running: dict[str, Any] = {}
        if ranks is not None:
            ranks.forget_reported()
            slots = ranks.slots()
            held = [ranks.numbers.start, len(ranks.numbers)]
            if ranks.alive:
                resume, stop_at = ranks.ordered_resume()
                pids = {rank: 1 << 22 | rank for rank in ranks.numbers}
                running = {
                    "place": self._place, "pids": pids, "ended": {}, "resume": resume, "stop_at": stop_at,
                    "killed": False,
                }  # fmt: skip
        self._send(
            "hello",
            **self._shared.hello,
            probe=self._probe,
            port=20000 + self.number,
            wall=time.time(),
            held=held,
            slots=slots,
            lineage=self._lineage,
            running=running,
            copier={"port": 0, "lineage": "", "every": 0},
        )

    def _on_message(self, message: dict[str, Any]) -> None:
        do = message["do"]
        self.traffic.note(do, message, "<")
        if self._silent:
            return
        if do == "welcome":
            self.met = time.monotonic()
            self.terms.append(message["term"])
            self._send("ready", apart=[], journal=[])
        elif do == "spawn":
            self.start_ordered_at = time.monotonic()
            self._spawn(message)
        elif do == "pages" and self._ranks is not None:
            self._ranks.perform(message["verb"], message["values"])
        elif do in ("leave", "kill") and self._ranks is not None and self._ranks.alive:
            self.leave_ordered_at = time.monotonic()
            code = _SIGTERM if do == "leave" else _KILLED
            leaving = sorted(self._ranks.alive)
            self._shared.loop.call_at(
                time.monotonic() + _LEAVES_AFTER, (self, "leave"), lambda: self._end_ranks(leaving, code)
            )
        elif do == "saver":
            self._send(
                "saver", answer={"error": "a pretended node has no saver", "number": message["request"].get("number")}
            )
        elif do in ("done", "dismissed", "refused"):
            self.code = message.get("code", 2)
            self.link.close()

    def _spawn(self, message: Mapping[str, Any]) -> None:
        if self._ranks is not None and self._ranks.alive:
            self._next = message
            return
        place = message["place"]
        if self._ranks is None or self._place != place["node"]:
            self._ranks = PretendedRanks(place["count"], place["first"], self._shared.step_seconds)
        self._place = place["node"]
        self._attempt = message["attempt"]
        self._lineage = message["lineage"]
        self.starts += 1
        pids = self._ranks.start(self._attempt, message["resume"])
        self._send("started", attempt=self._attempt, pids=pids, log_from=dict.fromkeys(pids, 0))
